package engine

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
)

// Options configure an Engine. The zero value of each field has a stated, safe default.
type Options struct {
	// DefaultScope is the scope of events whose Event.Scope is empty, and of Lookup and Forget.
	// Empty: every event must name its scope. Leave it empty if scopes are computed, for instance
	// from a tenant: an empty result would be taken for the default scope, and equal ids of two
	// tenants for one event.
	DefaultScope string

	// RetentionWeeks is how many weeks before the current one are retained; their claims are found,
	// older events are TooOld. 0 = 4; KeepAll = nothing expires. It decides where a store without
	// claims begins, by the clock at each Open, and what DropExpired drops; a higher number does not
	// restore a dropped week.
	RetentionWeeks int

	// ScopeRetention is how many weeks before the current one are retained for single scopes, fewer
	// than RetentionWeeks: their earlier events are TooOld once DropExpired has dropped these
	// weeks, in the same run and within the same bounds. A dropped week is not restored. To retain
	// one scope longer than the others, raise RetentionWeeks and set shorter retentions for the
	// others here. A window (Event.Window) is at most as long as its scope's retention. At most
	// limits.ScopeRetentions scopes.
	ScopeRetention map[string]int

	// AllowedSkew is how far an event's time may be ahead of the clock before it is TooNew. 0 =
	// 24 hours; at most limits.AllowedSkew.
	AllowedSkew time.Duration

	// MaxIDBytes is the maximum length of an event id. 0 = 1024; at most limits.IDBytes.
	MaxIDBytes int

	// Nightly says when the engine drops expired weeks by itself: at 03:00 UTC unless it is set.
	Nightly Nightly

	// MaxWeeksPerRun is the maximum number of weeks that one DropExpired drops, so that little is
	// lost if the clock is ahead (see DropExpired). 0 = 2.
	MaxWeeksPerRun int

	// RecentClaims is the number of claims in the cache of repeated claims, some 200 bytes each. If
	// it is full, a claim enters it with its second repetition. 0 = 65,536; negative = no cache.
	RecentClaims int

	// ExpectedPerWeek is the size of a week's filter, in claims, if no better estimate is known:
	// for the first week of a new store at once, for a week before all others when it has more than
	// 2,048 claims. Other weeks are sized from the count of the week before. A wrong value costs
	// memory or a little speed, but changes no verdict. 0 = 1,048,576; at most
	// limits.ExpectedPerWeek.
	ExpectedPerWeek uint64

	// MaxFilterBytes is the maximum size of all filters together. A filter needs 2 bytes for each
	// claim of its week, and up to 8 while it grows. If there is no space, the filters of the
	// oldest weeks are evicted for those of later ones (Stats.FiltersEvicted); a filter for which
	// none can be evicted keeps its size (Stats.FiltersSaturated). Verdicts remain correct, and
	// more of them read the store. If it is raised, Open rebuilds the filters in the background
	// where one was saturated or evicted. On Linux, the parts of a filter from 1 MiB on are outside
	// of Go's heap: GOGC and GOMEMLIMIT do not count them. 0 = 512 MiB; at most
	// limits.MaxFilterBytes.
	MaxFilterBytes uint64

	// MaxOutboxBytes is the maximum size of the messages in the outbox, parked ones included: their
	// fields and 128 bytes each. Beyond it, Tx.Produce returns ErrOutboxFull, so that an outage of
	// Kafka does not fill the disk. Open transactions do not count. 0 = 8 GiB; math.MaxUint64 = no
	// limit.
	MaxOutboxBytes uint64

	// Clock returns the time: for FirstSeen, TooNew, and what is expired. nil = time.Now.
	Clock func() time.Time

	// Observer receives the events of the engine. nil = none.
	Observer Observer

	snapshotEvery uint64 // see filters.SnapshotOptions; these are set by tests
	trimAtClose   uint64
	snapshotRetry time.Duration
}

// Nightly says when the engine itself calls DropExpired: once a day, unless Off is set. The zero
// value is 03:00 UTC.
//
// If no engine was open at that time, it drops ten minutes after Open, when the consumers of the
// process have had time to place their holds, and then each night. So a store whose process ends
// within ten minutes drops nothing: call DropExpired there. A backup, which may have been opened to
// look at it, waits for the next night.
type Nightly struct {
	// Off leaves dropping to the application: without calls of DropExpired, weeks are never dropped.
	Off bool

	// At is the time of day, UTC, up to 24h for midnight. 0 = 3h.
	At time.Duration

	// Report receives the outcome of each run, if it is not nil. It must not call Close.
	Report func(DropReport, error)
}

func (o Options) withDefaults() (Options, error) {
	zero := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	zero(&o.RetentionWeeks, defaultRetentionWeeks)
	zero(&o.MaxIDBytes, defaultMaxIDBytes)
	zero(&o.MaxWeeksPerRun, defaultMaxWeeksPerRun)
	zero(&o.RecentClaims, defaultRecentClaims)
	if o.Nightly.At == 0 {
		o.Nightly.At = defaultNightlyAt
	}
	if o.AllowedSkew == 0 {
		o.AllowedSkew = defaultAllowedSkew
	}
	if o.ExpectedPerWeek == 0 {
		o.ExpectedPerWeek = defaultExpectedPerWeek
	}
	if o.MaxFilterBytes == 0 {
		o.MaxFilterBytes = defaultMaxFilterBytes
	}
	if o.MaxOutboxBytes == 0 {
		o.MaxOutboxBytes = defaultMaxOutboxBytes
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.ScopeRetention = maps.Clone(o.ScopeRetention)
	return o, o.refused()
}

// refused returns the error of an option that is out of bounds.
func (o *Options) refused() error {
	refuse := func(field, why string) error { return fmt.Errorf("hapax: Options.%s %s", field, why) }
	switch {
	case o.Observer != nil && isNil(o.Observer):
		return refuse("Observer", "is a nil pointer: give telemetry.New's result, and check its error, or leave it out")
	case o.DefaultScope != "" && strings.TrimSpace(o.DefaultScope) == "":
		return refuse("DefaultScope", "is blank: name the consumer or leave it empty")
	case len(o.DefaultScope) > limits.ScopeBytes:
		return refuse("DefaultScope", fmt.Sprintf("has more than %d bytes", limits.ScopeBytes))
	case o.RetentionWeeks < KeepAll || o.RetentionWeeks > maxRetentionWeeks:
		return refuse("RetentionWeeks", fmt.Sprintf("is %d: give 1 to %d weeks, or KeepAll", o.RetentionWeeks, maxRetentionWeeks))
	case o.AllowedSkew < 0 || o.AllowedSkew > limits.AllowedSkew:
		return refuse("AllowedSkew", fmt.Sprintf("is %v: give a time up to %v", o.AllowedSkew, limits.AllowedSkew))
	case o.MaxIDBytes < 0 || o.MaxIDBytes > limits.IDBytes:
		return refuse("MaxIDBytes", fmt.Sprintf("is %d: give 1 to %d", o.MaxIDBytes, limits.IDBytes))
	case o.MaxWeeksPerRun < 0:
		return refuse("MaxWeeksPerRun", "is negative")
	case o.Nightly.At < 0 || o.Nightly.At > 24*time.Hour:
		return refuse("Nightly.At", fmt.Sprintf("is %v: give a time of day up to 24h, and set Off to drop nothing", o.Nightly.At))
	case o.ExpectedPerWeek > limits.ExpectedPerWeek:
		return refuse("ExpectedPerWeek", fmt.Sprintf("is %d: give at most %d claims", o.ExpectedPerWeek, limits.ExpectedPerWeek))
	case o.MaxFilterBytes > limits.MaxFilterBytes:
		return refuse("MaxFilterBytes", fmt.Sprintf("is %d: give at most %d bytes", o.MaxFilterBytes, limits.MaxFilterBytes))
	}
	if why := o.scopesRefused(); why != "" {
		return refuse("ScopeRetention", why)
	}
	return nil
}

// scopesRefused returns why ScopeRetention is invalid, "" if it is valid.
func (o *Options) scopesRefused() string {
	if n := len(o.ScopeRetention); n > limits.ScopeRetentions {
		return fmt.Sprintf("has %d scopes: name at most %d (limits.ScopeRetentions), and retain the others for RetentionWeeks", n, limits.ScopeRetentions)
	}
	for scope, weeks := range o.ScopeRetention {
		switch {
		case strings.TrimSpace(scope) == "" || len(scope) > limits.ScopeBytes:
			return fmt.Sprintf("has the scope %q, which is blank or has more than %d bytes", scope, limits.ScopeBytes)
		case weeks < 1 || o.RetentionWeeks != KeepAll && weeks > o.RetentionWeeks:
			return fmt.Sprintf("keeps %d weeks of scope %q: give 1 to RetentionWeeks (%d), or raise that", weeks, scope, o.RetentionWeeks)
		}
	}
	return ""
}

// scope returns the scope that a caller has given, or the default one.
func (o *Options) scope(given string) string { return cmp.Or(given, o.DefaultScope) }

// scoped returns the events with their scopes. It does not change the given slice.
func (o *Options) scoped(events []Event) []Event {
	if o.DefaultScope == "" {
		return events
	}
	cloned := false
	for i := range events {
		if events[i].Scope != "" {
			continue
		}
		if !cloned {
			events, cloned = slices.Clone(events), true
		}
		events[i].Scope = o.DefaultScope
	}
	return events
}

// retentionOf returns how many weeks before the current one are retained for a scope.
func (o *Options) retentionOf(scope string) int {
	if weeks, ok := o.ScopeRetention[scope]; ok {
		return weeks
	}
	return o.RetentionWeeks
}

// isNil reports whether an interface is nil, or a nil pointer, as that of a failed Open is.
func isNil(v any) bool {
	p := reflect.ValueOf(v)
	return !p.IsValid() || p.Kind() == reflect.Pointer && p.IsNil()
}
