package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// maxSilence is how long a child may not move on before the run is given up.
const maxSilence = 2 * time.Minute

// live runs a child from its start to its end. heard gets its lines, may kill it, and reports
// whether the line shows that it moves on; it is killed after the time early in any case, unless
// that is 0. Without an error the child was killed by heard, or has done its work.
func live(ctx context.Context, kind string, order any, early time.Duration, heard func(c *child, word, rest string) (moved bool, err error)) (killed bool, err error) {
	c, err := startChild(ctx, kind, order)
	if err != nil {
		return false, err
	}
	var silent atomic.Bool
	silence := time.AfterFunc(maxSilence, func() {
		silent.Store(true)
		c.kill()
	})
	defer silence.Stop()
	if early > 0 {
		defer time.AfterFunc(early, c.kill).Stop()
	}
	killed, err = c.hear(func(word, rest string) error {
		moved, err := heard(c, word, rest)
		if moved {
			silence.Reset(maxSilence)
		}
		return err
	})
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && silent.Load():
		err = fmt.Errorf("its process has not moved on for %v", maxSilence)
	}
	return killed, err
}
