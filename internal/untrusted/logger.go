package untrusted

import (
	"context"
	"log/slog"
)

// Logger returns a logger that cuts and escapes every text and error before it passes them to l, so
// that an entry of the log is one line, whatever l does with its text. Errors are Taken, and can
// still be examined with errors.Is and errors.As. nil = slog.Default().
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		l = slog.Default()
	}
	if _, ok := l.Handler().(*handler); ok {
		return l
	}
	return slog.New(&handler{l.Handler()})
}

// Lines is a text of several lines that is logged unchanged, because this module has made it, such
// as a stack.
type Lines string

type handler struct{ next slog.Handler }

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, Text(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(attr(a))
		return true
	})
	return h.next.Handle(ctx, clean)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrList(attrs))}
}

func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.next.WithGroup(name)} }

func attrList(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = attr(a)
	}
	return clean
}

func attr(a slog.Attr) slog.Attr {
	switch v := a.Value; v.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(Text(v.String()))
	case slog.KindGroup:
		a.Value = slog.GroupValue(attrList(v.Group())...)
	case slog.KindAny, slog.KindLogValuer:
		if err, ok := v.Any().(error); ok {
			a.Value = slog.AnyValue(Error(err))
		}
	}
	return a
}
