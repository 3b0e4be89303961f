package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

func TestSeveralErrorsAreTheFirstOneAndTheirNumber(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	stopped := fmt.Errorf("stopped: %w", context.Canceled)
	tests := []struct {
		errs   []error
		want   string
		stands error // what the result is
	}{
		{nil, "<nil>", nil},
		{[]error{nil, nil}, "<nil>", nil},
		{[]error{nil, a, nil}, "a", a},
		{[]error{a, nil, b, a}, "a (and 2 more)", a},
		{[]error{stopped, b}, "b (and 1 more)", b},
		{[]error{stopped, b, a}, "b (and 2 more)", b},
		{[]error{a, stopped}, "a (and 1 more)", a},
		{[]error{stopped, stopped}, "stopped: context canceled (and 1 more)", context.Canceled},
	}
	for _, tt := range tests {
		if err := several(tt.errs...); fmt.Sprint(err) != tt.want || !errors.Is(err, tt.stands) {
			t.Errorf("%v make %v, want %s", tt.errs, err, tt.want)
		}
	}
}

func TestFullDiskIsToldWithWhatToDo(t *testing.T) {
	full := error(&fs.PathError{Op: "write", Path: "000004.log", Err: syscall.ENOSPC})
	err := fmt.Errorf("judging lines 1 to 9: %w", full)
	var o Outcome
	o.end(&err)
	if !errors.Is(err, full) || o.Error != err.Error() || !strings.Contains(o.Error, "free space") || !strings.Contains(o.Error, "--dir") {
		t.Errorf("the error is %v, the report's %q", err, o.Error)
	}
	err, o = errors.New("something else"), Outcome{}
	if o.end(&err); o.Error != "something else" {
		t.Errorf("another error is told as %q", o.Error)
	}
	err, o = nil, Outcome{}
	if o.end(&err); err != nil || o.Error != "" {
		t.Errorf("no error is told as %v, %q", err, o.Error)
	}
}
