package untrusted

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// A raw handler writes what it gets without escaping anything, as a handler for a console may.
type raw struct {
	b     *bytes.Buffer
	attrs []slog.Attr
	err   *error
}

func (h raw) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h raw) Handle(_ context.Context, r slog.Record) error {
	fmt.Fprint(h.b, r.Message)
	write := func(a slog.Attr) bool {
		fmt.Fprintf(h.b, " %s=%v", a.Key, a.Value)
		if err, ok := a.Value.Any().(error); ok {
			*h.err = err
		}
		return true
	}
	for _, a := range h.attrs {
		write(a)
	}
	r.Attrs(write)
	fmt.Fprintln(h.b)
	return nil
}

func (h raw) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)
	return h
}

func (h raw) WithGroup(string) slog.Handler { return h }

func TestEachLogLineIsOneShortLine(t *testing.T) {
	const hostile = "a\nlevel=ERROR fake\x1b[31m"
	long := hostile + strings.Repeat("b", 1<<20)
	sentinel := errors.New(long)
	var b bytes.Buffer
	var got error
	plain := slog.New(raw{b: &b, err: &got})
	log := Logger(Logger(plain))
	log.With("with", long).Info(hostile, "text", long, slog.Group("g", "in", long), "error", fmt.Errorf("%w", sentinel), "nil", (*panicking)(nil), "n", 1)
	if line := b.String(); strings.Count(line, "\n") != 1 || len(line) > 6*MaxText || strings.Contains(line, "\x1b") ||
		strings.Count(line, `a\nlevel=ERROR fake`) != 5 || !strings.HasSuffix(line, " n=1\n") {
		t.Errorf("%d bytes: %.300q", len(line), line)
	}
	log.Info("m", "error", fmt.Errorf("%w", sentinel))
	if !errors.Is(got, sentinel) {
		t.Errorf("the handler got the error %.40v, which has lost what it wraps", got)
	}
	b.Reset()
	log.Debug("not enabled")
	log.Info("m", "stack", Lines("a\nb"))
	if b.String() != "m stack=a\nb\n" {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	plain.Info(hostile) // the negative control
	if strings.Count(b.String(), "\n") != 2 {
		t.Errorf("%q", b.String())
	}
}
