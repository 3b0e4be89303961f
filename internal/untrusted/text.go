// Package untrusted copies texts and errors that come from outside this module: from handlers,
// brokers, producers and callers. These can be long, contain lines that look like other log lines,
// change later, and panic.
package untrusted

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxText is the maximum number of bytes of a copied text.
const MaxText = 2 << 10

const ellipsis = "…"

// Text returns s as one line of valid UTF-8, of at most MaxText bytes. Characters that are not
// printable are escaped as in a Go string, and a longer text ends in an ellipsis. Text of a result
// returns the same result.
func Text(s string) string { return Capped(s, MaxText) }

// Capped is Text with another maximum of at least 16 bytes.
func Capped(s string, most int) string {
	if len(s) <= most && isPlain(s) {
		return s
	}
	var b strings.Builder
	cut := 0 // the longest part that leaves room for the ellipsis ends here
	for i, size := 0, 0; i < len(s); i += size {
		var c rune
		c, size = utf8.DecodeRuneInString(s[i:])
		if c == utf8.RuneError && size == 1 {
			b.WriteString(`\x`)
			b.WriteString(hexByte(s[i]))
		} else {
			b.WriteString(escaped(c))
		}
		if b.Len() > most {
			return b.String()[:cut] + ellipsis
		}
		if b.Len() <= most-len(ellipsis) {
			cut = b.Len()
		}
	}
	return b.String()
}

func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func escaped(c rune) string {
	if strconv.IsPrint(c) {
		return string(c)
	}
	q := strconv.QuoteRune(c)
	return q[1 : len(q)-1]
}

func hexByte(b byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[b>>4], digits[b&15]})
}
