package untrusted

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

// A changing error is changed after it was returned.
type changing struct {
	text  string
	inner error
	calls int
}

func (e *changing) Error() string { e.calls++; return e.text }
func (e *changing) Unwrap() error { return e.inner }

func TestTakenErrorDoesNotChange(t *testing.T) {
	sentinel, other := errors.New("sentinel"), errors.New("other")
	e := &changing{text: "before", inner: sentinel}
	taken := Error(fmt.Errorf("handler: %w", e))
	calls := e.calls
	e.text, e.inner = strings.Repeat("after", 1<<20), other
	if got := taken.Error(); got != "handler: before" || e.calls != calls {
		t.Errorf("%.40q after %d more calls of Error", got, e.calls-calls)
	}
	if !errors.Is(taken, sentinel) || errors.Is(taken, other) {
		t.Error("what the error wraps has changed")
	}
	if found, ok := errors.AsType[*changing](taken); !ok || found != e {
		t.Error("the error is not found by its type")
	}
	if TypeOf(taken) != "*errors.errorString" {
		t.Error(TypeOf(taken))
	}
	again := fmt.Errorf("partition: %w", taken)
	if Error(taken) != taken || !errors.Is(Error(again), sentinel) || TypeOf(again) != "*errors.errorString" {
		t.Error("an error that was taken twice has lost something")
	}
}

func TestTakenJoinedErrors(t *testing.T) {
	a := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
	taken := Error(errors.Join(a, fmt.Errorf("b: %w", fs.ErrClosed)))
	path, ok := errors.AsType[*fs.PathError](taken)
	if !ok || path != a || !errors.Is(taken, fs.ErrNotExist) || !errors.Is(taken, fs.ErrClosed) || errors.Is(taken, fs.ErrExist) {
		t.Error("joined errors are not all found")
	}
	if taken.Error() != `open x: file does not exist\nb: file already closed` {
		t.Error(taken)
	}
	var timeout interface{ Timeout() bool }
	if !errors.As(taken, &timeout) {
		t.Error("an interface is not found")
	}
}

// A panicking error has methods that panic, as those of a nil pointer do.
type panicking struct{ what string }

func (e *panicking) hit(what string) bool {
	if e.what == what {
		panic("boom")
	}
	return false
}
func (e *panicking) Error() string   { e.hit("Error"); return "text" }
func (e *panicking) Unwrap() error   { e.hit("Unwrap"); return fs.ErrExist }
func (e *panicking) Is(_ error) bool { return e.hit("Is") }
func (e *panicking) As(_ any) bool   { return e.hit("As") }

type uncomparable []int

func (uncomparable) Error() string { return "uncomparable" }

func TestTakenErrorDoesNotPanic(t *testing.T) {
	for _, err := range []error{
		&panicking{"Error"}, &panicking{"Unwrap"}, &panicking{"Is"}, &panicking{"As"}, (*panicking)(nil), uncomparable{1},
		errors.Join(&panicking{"Is"}, uncomparable{1}),
	} {
		taken := Error(err)
		_ = errors.Is(taken, fs.ErrNotExist)
		_ = errors.Is(taken, uncomparable{2})
		_ = errors.As(taken, new(*fs.PathError))
		if taken.Error() == "" || TypeOf(err) == "" {
			t.Errorf("%T has no text or type", err)
		}
	}
	if got := Error((*panicking)(nil)).Error(); !strings.HasPrefix(got, "an error of type *untrusted.panicking, which panics: ") {
		t.Error(got)
	}
	if Error(nil) != nil {
		t.Error("no error has become one")
	}
}

func TestErrorThatWrapsItselfIsTaken(t *testing.T) {
	e := &changing{text: "endless"}
	e.inner = e
	if taken := Error(e); taken.Error() != "endless" || errors.Is(taken, fs.ErrExist) || TypeOf(taken) != "*untrusted.changing" {
		t.Error(taken)
	}
}

func TestErrorOfManyRowsKeepsWhatItWraps(t *testing.T) {
	sentinel := errors.New("the database is down")
	var rows []error
	for i := range 1000 {
		rows = append(rows, fmt.Errorf("row %d: %w", i, errors.New("refused")))
	}
	if err := errors.Join(append(rows, sentinel)...); !errors.Is(Error(err), sentinel) {
		t.Error("what a joined error wraps last is lost")
	}
}
