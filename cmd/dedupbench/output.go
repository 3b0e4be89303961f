package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hapax-dev/hapax/bench"
	draw "github.com/hapax-dev/hapax/bench/report"
)

// output is the destination of a command's report.
type output struct {
	stdout, stderr io.Writer
	json           bool
	command        string
	args           []string
	printed        bool // the report was printed
}

// report prints what a run returned, and returns its error. If a run failed before it counted
// anything, only the JSON of its outcome is printed.
func report[R any](o *output, r R, err error) error {
	if o.json || err == nil || !errors.Is(err, bench.ErrUsage) && counted(reflect.ValueOf(r)) {
		o.print(r)
	}
	return err
}

// counted reports whether a count of a report is not zero.
func counted(r reflect.Value) bool {
	for _, field := range r.Fields() {
		if field.Kind() == reflect.Uint64 && field.Uint() > 0 || field.Kind() == reflect.Struct && counted(field) {
			return true
		}
	}
	return false
}

// say prints to an output. If its reader is gone, the error cannot be reported.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func (o *output) print(r any) {
	o.printed = true
	if o.json {
		line, err := json.Marshal(r)
		if err != nil {
			line = fmt.Appendf(nil, `{"error":%q}`, "the report cannot be printed: "+err.Error())
		}
		if o.command != "" {
			line = o.withAbout(line)
		}
		say(o.stdout, "%s\n", line)
		return
	}
	w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	printFields(w, "", reflect.ValueOf(r))
	_ = w.Flush() // nobody would read the error
}

// withAbout adds the About of the report to a JSON object that is not empty.
func (o *output) withAbout(object []byte) []byte {
	about, err := json.Marshal(draw.NewAbout(o.command, "dedupbench", o.args))
	if err != nil {
		return object
	}
	return slices.Concat(object[:len(object)-1], []byte(`,"about":`), about, []byte("}"))
}

// printFields prints a report's fields under the names of its JSON form, one on a line.
func printFields(w io.Writer, indent string, v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, rest, _ := strings.Cut(field.Tag.Get("json"), ",")
		value := v.Field(i)
		switch {
		case field.Anonymous:
			printFields(w, indent, value)
		case name == "" || name == "-" || rest == "omitempty" && value.IsZero():
		default:
			printValue(w, indent+strings.ReplaceAll(name, "_", " "), indent, value)
		}
	}
}

func printValue(w io.Writer, name, indent string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			say(w, "%s\t-\n", name)
			return
		}
		printValue(w, name, indent, v.Elem())
	case reflect.Slice:
		say(w, "%s\n", name)
		for i := range v.Len() {
			say(w, "%s  %v\n", indent, v.Index(i).Interface())
		}
	case reflect.Struct:
		say(w, "%s\n", name)
		printFields(w, indent+"  ", v)
	case reflect.Float64:
		say(w, "%s\t%s\n", name, number(v.Float()))
	default:
		say(w, "%s\t%v\n", name, v.Interface())
	}
}

// number rounds a figure to the digits that matter to a reader.
func number(f float64) string {
	switch {
	case f >= 1000 || f <= -1000:
		return fmt.Sprintf("%.0f", f)
	case f >= 10 || f <= -10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.4g", f)
}
