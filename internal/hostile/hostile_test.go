package hostile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/internal/untrusted"
)

// A counting T counts failures.
type counting struct {
	testing.TB
	failed int
}

func (c *counting) Helper()               {}
func (c *counting) Errorf(string, ...any) { c.failed++ }

func TestCheckFindsWhatIsWrong(t *testing.T) {
	for name, how := range IDs {
		var good, bad, missing Log
		untrusted.Logger(good.Logger()).Warn("m", how.Attr("id", ID), how.Attr("other", Long), "error", errors.New(Text))
		good.Check(t, how, ID, Long)
		bad.Logger().Warn("m", "id", ID)
		bad.Logger().Warn(fmt.Sprintf("m %q", Long))
		c := &counting{TB: t}
		if bad.Check(c, how, ID, Long); c.failed < 2 {
			t.Errorf("%s: %d failures for a log that is wrong", name, c.failed)
		}
		c = &counting{TB: t}
		missing.Logger().Warn("m")
		if missing.Check(c, how, ID); (c.failed > 0) == how.Omits() {
			t.Errorf("%s: %d failures for a log without the id", name, c.failed)
		}
	}
}
