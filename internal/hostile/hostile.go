// Package hostile has ids and errors that an attacker could choose, and checks how they appear in a
// log, for tests.
package hostile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/hapax-dev/hapax/redact"
)

// ID is an id that would be two lines of a log if it were written unescaped.
const ID = "a\nlevel=ERROR fake"

// fake is in ID, and in no other text.
const fake = "level=ERROR fake"

// Long is an id of 1 MiB, and Text the text of an error.
var (
	Long = ID + strings.Repeat("b", 1<<20-len(ID))
	Text = "e\nlevel=ERROR forged" + strings.Repeat("c", 1<<20)
)

// MaxLine is the maximum length of a log line: an id and an error, both escaped, and the text
// around them.
const MaxLine = 6 << 10

var secret = []byte("a secret of 32 bytes for hashing")

// IDs are the ways in which ids are shown.
var IDs = map[string]redact.IDs{"plain": redact.Plain(), "hashed": redact.Hashed(secret), "omitted": redact.Omitted()}

// A Log writes the text of each message and attribute as it is, as a handler for a console may. It is
// safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	lines []string
}

// Logger returns a logger that writes to the log, at all levels.
func (l *Log) Logger() *slog.Logger { return slog.New(handler{log: l}) }

// Lines returns the entries so far. An entry has several lines if one of its attributes has.
func (l *Log) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

// Check reports each entry that is not one short line of text, and each that shows one of the ids
// differently from how. It fails if how shows ids and one of them is not in the log.
func (l *Log) Check(t testing.TB, how redact.IDs, ids ...string) {
	t.Helper()
	lines := l.Lines()
	for _, line := range lines {
		CheckText(t, line, how, ids...)
	}
	for _, id := range ids {
		if all := strings.Join(lines, "\n"); !how.Omits() && !strings.Contains(all, how.Text(id)) {
			t.Errorf("the id %.40q is not in the log, which has %d lines: %.2000s", id, len(lines), all)
		}
	}
}

// CheckText is Check for one text.
func CheckText(t testing.TB, text string, how redact.IDs, ids ...string) {
	t.Helper()
	if strings.ContainsAny(text, "\n\r\x1b") || len(text) > MaxLine || !utf8.ValidString(text) {
		t.Errorf("%d bytes: %.200q", len(text), text)
	}
	for _, id := range ids {
		if how != redact.Plain() && (strings.Contains(text, id) || strings.Contains(text, fake)) {
			t.Errorf("an id is shown: %.200q", text)
		}
	}
}

type handler struct {
	log   *Log
	attrs []slog.Attr
}

func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	b.WriteString(r.Message)
	write := func(a slog.Attr) bool {
		if !a.Equal(slog.Attr{}) {
			fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		}
		return true
	}
	for _, a := range h.attrs {
		write(a)
	}
	r.Attrs(write)
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	h.log.lines = append(h.log.lines, b.String())
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)
	return h
}

func (h handler) WithGroup(string) slog.Handler { return h }
