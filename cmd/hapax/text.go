package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// say prints to an output. If its reader is gone, the error cannot be reported.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// oneLine returns the text of an error, whose parts may come from strangers.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if !isShown(text) {
		text = strings.ReplaceAll(strings.Trim(strconv.Quote(text), `"`), `\"`, `"`)
	}
	return text
}

// escaped returns a text unchanged if a terminal shows all of it as it is, and otherwise in quotes and
// escaped: producers choose ids.
func escaped(s string) string {
	if s != "" && s[0] != '"' && isShown(s) {
		return s
	}
	return strconv.Quote(s)
}

// isShown reports whether a terminal shows the text as it is.
func isShown(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
