package kafkaadapter

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

func TestMarksOfErrorsAreRecognised(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		err                  error
		permanent, transient bool
	}{
		{nil, false, false},
		{cause, false, false},
		{Permanent(nil), false, false},
		{Transient(nil), false, false},
		{Permanent(cause), true, false},
		{fmt.Errorf("wrapped: %w", Permanent(cause)), true, false},
		{Transient(cause), false, true},
		{fmt.Errorf("wrapped: %w", Transient(cause)), false, true},
		{fmt.Errorf("wrapped: %w", engine.ErrOutboxFull), false, true},
	} {
		if IsPermanent(c.err) != c.permanent || IsTransient(c.err) != c.transient {
			t.Errorf("%v: permanent %t, transient %t", c.err, IsPermanent(c.err), IsTransient(c.err))
		}
	}
}
