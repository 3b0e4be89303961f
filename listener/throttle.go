package listener

import (
	"log/slog"
	"sync"
	"time"
)

// duplicatesEvery is the minimum time between two warnings of a listener about duplicates, so that
// a producer that sends everything twice does not fill the log.
const duplicatesEvery = time.Second

// A throttle lets one line pass as a warning in each duplicatesEvery. It is safe for concurrent use.
type throttle struct {
	mu      sync.Mutex
	next    time.Time // earliest time of the next warning
	skipped int       // lines since the last warning
}

// level returns the level of a line at the given time, and the number of lines since the last
// warning.
func (t *throttle) level(now time.Time) (level slog.Level, skipped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.next) {
		t.skipped++
		return slog.LevelDebug, 0
	}
	skipped, t.skipped, t.next = t.skipped, 0, now.Add(duplicatesEvery)
	return slog.LevelWarn, skipped
}
