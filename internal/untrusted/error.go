package untrusted

import (
	"errors"
	"fmt"
	"reflect"
)

// A Taken is a copy of an error of the application. Its text and its chain cannot change. errors.Is
// and errors.As work as with the error itself, and do not panic if its methods do. It has no
// Unwrap, so that nothing calls these methods without this protection.
type Taken struct {
	text  string
	typ   string  // of the innermost error
	chain []error // the error and those that it wraps, in the order of errors.Is
}

// maxChain bounds the chain of an error that wraps itself. It is larger than the number of errors
// that a handler joins for the rows of a batch.
const maxChain = 1 << 16

// Take copies an error; nil remains nil. It reads the text and the chain once. A panic of the
// error's methods goes to the caller.
func Take(err error) *Taken {
	if t, ok := err.(*Taken); ok || err == nil {
		return t
	}
	t := &Taken{text: Text(err.Error())}
	t.add(err)
	return t
}

// Error copies an error for use in a text. A panic becomes a part of the text.
func Error(err error) (taken error) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			taken = &Taken{text: Text(fmt.Sprintf("an error of type %T, which panics: %v", err, v)), typ: fmt.Sprintf("%T", err)}
		}
	}()
	return Take(err)
}

// Is is errors.Is for an error that was not copied. It is false if a method of the error panics.
func Is(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}

// add adds an error and those that it wraps to the chain, and calls Unwrap of each once.
func (t *Taken) add(err error) {
	for len(t.chain) < maxChain {
		t.chain = append(t.chain, err)
		var inner error
		switch u := err.(type) {
		case *Taken:
			t.setType(u.typ)
			return
		case interface{ Unwrap() error }:
			inner = u.Unwrap()
		case interface{ Unwrap() []error }:
			t.setType(fmt.Sprintf("%T", err))
			for _, err := range u.Unwrap() {
				if err != nil {
					t.add(err)
				}
			}
			return
		}
		if inner == nil {
			break
		}
		err = inner
	}
	t.setType(fmt.Sprintf("%T", err))
}

func (t *Taken) setType(name string) {
	if t.typ == "" {
		t.typ = name
	}
}

// Error returns the text.
func (t *Taken) Error() string { return t.text }

// Is reports whether the error wrapped target when it was copied, for errors.Is.
func (t *Taken) Is(target error) bool {
	for _, err := range t.chain {
		if matches(err, target) {
			return true
		}
	}
	return false
}

func matches(err, target error) (found bool) {
	defer func() {
		if recover() != nil {
			found = false
		}
	}()
	if reflect.TypeOf(target).Comparable() && err == target {
		return true
	}
	x, ok := err.(interface{ Is(error) bool })
	return ok && x.Is(target)
}

// As finds the first error of the chain that fits target, for errors.As.
func (t *Taken) As(target any) bool {
	to := reflect.ValueOf(target).Elem()
	for _, err := range t.chain {
		if reflect.TypeOf(err).AssignableTo(to.Type()) {
			to.Set(reflect.ValueOf(err))
			return true
		}
		if fits(err, target) {
			return true
		}
	}
	return false
}

func fits(err error, target any) (found bool) {
	defer func() {
		if recover() != nil {
			found = false
		}
	}()
	x, ok := err.(interface{ As(any) bool })
	return ok && x.As(target)
}

// TypeOf returns the name of the innermost error's type. The types of the wrappers say nothing.
func TypeOf(err error) string {
	t, _ := Error(err).(*Taken)
	if t == nil {
		return ""
	}
	return t.typ
}
