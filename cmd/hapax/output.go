package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// output is the destination of what a command prints.
type output struct {
	w      io.Writer
	format string // table, json or jsonl
	err    error  // the first error of the writer
}

func (o *output) write(text string) {
	if _, err := io.WriteString(o.w, text); err != nil && o.err == nil {
		o.err = fmt.Errorf("the answer could not be written: %w", err)
	}
}

func (o *output) json(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the commands print structs of texts and numbers
	}
	return string(b)
}

// object prints the fields of a struct, one on a line, or as one JSON object.
func (o *output) object(v any) {
	if o.format != "table" {
		o.write(o.json(v) + "\n")
		return
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	names, cells := row(v)
	for i := range names {
		say(w, "%s\t%s\n", names[i], cells[i])
	}
	_ = w.Flush() // to memory
	o.write(b.String())
}

// rowsOf prints a list of structs as they are added.
type rowsOf[T any] struct {
	o     *output
	table *tabwriter.Writer
	text  strings.Builder
	n     int
}

// rows begins a list; end ends it, also after an error.
func rows[T any](o *output) *rowsOf[T] {
	r := &rowsOf[T]{o: o}
	switch o.format {
	case "json":
		o.write("[")
	case "table":
		r.table = tabwriter.NewWriter(&r.text, 0, 0, 2, ' ', 0)
		names, _ := row(*new(T))
		say(r.table, "%s\n", strings.ToUpper(strings.Join(names, "\t")))
	}
	return r
}

// tableRows is how many rows of a table are aligned together.
const tableRows = 1000

func (r *rowsOf[T]) add(v T) {
	r.n++
	switch r.o.format {
	case "jsonl":
		r.o.write(r.o.json(v) + "\n")
	case "json":
		if r.n > 1 {
			r.o.write(",")
		}
		r.o.write("\n" + r.o.json(v))
	default:
		_, cells := row(v)
		say(r.table, "%s\n", strings.Join(cells, "\t"))
		if r.n%tableRows == 0 {
			r.flush()
		}
	}
}

func (r *rowsOf[T]) flush() {
	_ = r.table.Flush() // to memory
	r.o.write(r.text.String())
	r.text.Reset()
}

func (r *rowsOf[T]) end() {
	switch r.o.format {
	case "json":
		r.o.write("\n]\n")
	case "table":
		r.flush()
	}
}

// row returns the names and the texts of a struct's fields.
func row(v any) (names, cells []string) {
	value := reflect.ValueOf(v)
	for i := range value.NumField() {
		name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		names = append(names, strings.ReplaceAll(name, "_", " "))
		cells = append(cells, cell(value.Field(i).Interface()))
	}
	return names, cells
}

func cell(v any) string {
	switch v := v.(type) {
	case id:
		return escaped(string(v))
	case string:
		if v == "" {
			return "-"
		}
		return escaped(v)
	case time.Time:
		if v.IsZero() {
			return "-"
		}
		return v.Format("2006-01-02T15:04:05.000Z07:00")
	case map[string]int64:
		var texts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			texts = append(texts, fmt.Sprintf("%s %d", name, v[name]))
		}
		return cell(texts)
	case []string:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = escaped(v[i])
		}
		if len(texts) == 0 {
			return "-"
		}
		return strings.Join(texts, ", ")
	}
	return fmt.Sprint(v)
}

// An id is a sequence of bytes that a producer has chosen. In JSON it is a text, in which other bytes than
// those of UTF-8 are replaced, and the exact bytes in base64.
type id []byte

// MarshalJSON implements json.Marshaler.
func (i id) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Text   string `json:"text"`
		Base64 string `json:"base64"`
	}{strings.ToValidUTF8(string(i), "\uFFFD"), base64.StdEncoding.EncodeToString(i)})
}
