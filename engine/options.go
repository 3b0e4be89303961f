package engine

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/limits"
)

// Options configure an Engine. The zero value of each field is a safe default.
type Options struct {
	// DefaultScope is the scope of events whose Event.Scope is empty, and of Lookup and Forget. If
	// it is empty, every event must name its scope. Leave it empty if scopes are computed, for
	// example from a tenant: an empty result would select the default scope, in which equal ids of
	// two tenants are one event.
	DefaultScope string

	// RetentionWeeks is how many weeks before the current one are retained; older events are
	// TooOld. 0 = 4; KeepAll = nothing expires. It decides which weeks DropExpired drops and, by
	// the clock at Open, the oldest week of a store without claims. A higher number does not
	// restore a dropped week.
	RetentionWeeks int

	// ScopeRetention is how many weeks before the current one are retained for single scopes, fewer
	// than RetentionWeeks. Their earlier events are TooOld once DropExpired has dropped these
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

	// Nightly says when the engine itself drops expired weeks: at 03:00 UTC by default.
	Nightly Nightly

	// MaxWeeksPerRun is the maximum number of weeks that one call of DropExpired drops, so that
	// little is lost if the clock is ahead. 0 = 2.
	MaxWeeksPerRun int

	// RecentClaims is the size of the cache of repeated claims, in claims of some 200 bytes each.
	// If it is full, a claim is added at its second repetition. 0 = 65,536; negative = no cache.
	RecentClaims int

	// ExpectedPerWeek is the size of a week's filter, in claims, if there is no better estimate:
	// for the first week of a new store at once, and for a week before all others when it has more
	// than 2,048 claims. The filters of other weeks are sized by the number of claims in the week
	// before. A wrong value costs memory or a little speed, but changes no verdict. 0 = 1,048,576;
	// at most limits.ExpectedPerWeek.
	ExpectedPerWeek uint64

	// MaxFilterBytes is the maximum size of all filters together. A filter needs 2 bytes for each
	// claim of its week, and up to 8 while it grows. If there is no space, the filters of the
	// oldest weeks are evicted for those of later ones (Stats.FiltersEvicted); a filter for which
	// none can be evicted does not grow (Stats.FiltersSaturated). Verdicts remain correct, but more
	// of them read the store. When the limit is raised, Open rebuilds the filters in the background
	// if one was saturated or evicted. On Linux, the parts of a filter from 1 MiB on are outside
	// the Go heap: GOGC and GOMEMLIMIT do not count them.
	//
	// 0 = an eighth of the memory of the process when the engine is opened: of the least of the
	// machine's memory, the limits of its control groups (version 2, Linux) and GOMEMLIMIT; 512 MiB
	// where none of them is known. At most limits.MaxFilterBytes.
	MaxFilterBytes uint64

	// MaxOutboxBytes is the maximum size of the messages in the outbox, parked ones included: their
	// fields and 128 bytes each. Beyond that, Tx.Produce returns ErrOutboxFull, so that an outage
	// of Kafka does not fill the disk. Open transactions do not count. 0 = 8 GiB; math.MaxUint64 =
	// no limit.
	MaxOutboxBytes uint64

	// Clock returns the time for FirstSeen, TooNew and expiry. nil = time.Now.
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
// If no engine was open at that time, the engine drops after Open, and then each night. It waits for a
// minute, in which the application may begin consumers and place holds, and then until the consumers
// have placed the holds of all their partitions, at most until the next night. If the store has holds
// but no consumer begins, it waits for ten minutes. A process that ends earlier drops nothing and
// should call DropExpired itself. A backup, which may have been opened only for inspection, waits for
// the next night.
type Nightly struct {
	// Off leaves dropping to the application: unless it calls DropExpired, weeks are never dropped.
	Off bool

	// At is the time of day in UTC; 24h means midnight. 0 = 3h.
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
		o.MaxFilterBytes = filters.DefaultBytes()
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

// refused returns an error for an option that is out of bounds.
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

// scopesRefused says why ScopeRetention is invalid, "" if it is valid.
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

// scope returns the given scope, or the default one if it is empty.
func (o *Options) scope(given string) string { return cmp.Or(given, o.DefaultScope) }

// scoped returns the events with the default scope set where the scope is empty. It does not change
// the given slice.
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

// isNil reports whether an interface is nil or has a nil pointer, such as the result of a failed
// Open.
func isNil(v any) bool {
	p := reflect.ValueOf(v)
	return !p.IsValid() || p.Kind() == reflect.Pointer && p.IsNil()
}
