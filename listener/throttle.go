package listener

import (
	"log/slog"
	"sync"
	"time"
)

// duplicatesEvery is the least time between two warnings of a listener about duplicates. A producer
// that sends everything twice must not fill the log.
const duplicatesEvery = time.Second

// A throttle lets one line pass as a warning in each duplicatesEvery. It is safe for concurrent use.
type throttle struct {
	mu      sync.Mutex
	next    time.Time // of the next warning
	skipped int       // lines since the last one
}

// level returns the level of a line at a time, and how many lines before it were no warnings.
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
