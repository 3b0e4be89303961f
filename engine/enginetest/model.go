package enginetest

import (
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The defaults of engine.Options, which the model's engines use.
const (
	defaultRetentionWeeks = 4
	defaultMaxWeeksPerRun = 2
	defaultAllowedSkew    = 24 * time.Hour
)

// A model predicts the results of an engine.
type model struct {
	clock     time.Time
	retention map[string]int // retentions of scopes
	told      *facts
	held      map[claimKey]bool // claims held by open transactions
	// the changes of others since each open transaction began, the outermost first
	open []map[string]bool
}

func newModel(retention map[string]int) *model {
	m := &model{clock: modelStart, retention: retention, held: map[claimKey]bool{}}
	m.told = &facts{
		claims: map[claimKey]engine.ClaimRecord{}, host: map[string]string{}, offsets: map[int32]int64{}, holds: map[string]weekbucket.Week{},
		floors: map[string]weekbucket.Week{}, oldest: m.week() - defaultRetentionWeeks,
	}
	return m
}

var modelStart = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func (m *model) week() weekbucket.Week {
	w, err := weekbucket.Of(m.clock)
	if err != nil {
		panic(err)
	}
	return w
}

// opened updates the model after an Open, which may have set the oldest week by the clock. Open
// does so only if there never was a claim or a drop. The model does not know of a claim that was
// forgotten.
func (m *model) opened(oldest weekbucket.Week) {
	f, byClock := m.told, m.week()-defaultRetentionWeeks
	if held := f.lowestHold(); held < byClock {
		byClock = max(held, min(f.oldest, byClock))
	}
	if len(f.claims) == 0 && len(f.floors) == 0 && !f.dropped && oldest == byClock {
		f.oldest = oldest
	}
}

// kept returns the window, at most the longest window that the scope may have.
func (m *model) kept(scope string, window time.Duration) time.Duration {
	if weeks, ok := m.retention[scope]; ok {
		window = min(window, time.Duration(weeks)*7*24*time.Hour)
	}
	return window
}

// near returns the other weeks in which a claim counts: the ones before and after, if the time is
// approximate, and all retained ones and the next, if there is no time.
func (m *model) near(ev engine.Event, k claimKey) (keys []claimKey) {
	first := k.week
	switch {
	case ev.Time.IsZero() && ev.Window > 0:
		first = m.told.oldestOf(k.scope)
	case ev.ApproximateTime:
		first--
	default:
		return nil
	}
	for week := first; week <= k.week+1; week++ {
		if week != k.week {
			keys = append(keys, claimKey{k.scope, week, k.id})
		}
	}
	return keys
}

// expired reports whether the claim's window has ended for the event: it arrives at least a window
// after the event that made the claim, and was sent at least a window before or after that event.
func (m *model) expired(ev engine.Event, rec engine.ClaimRecord) bool {
	far := ev.Sent.IsZero() || rec.SentUnixMilli == 0 || ev.Sent.Sub(time.UnixMilli(rec.SentUnixMilli)).Abs() >= rec.Window
	return rec.Window > 0 && m.clock.Sub(rec.FirstSeen) >= rec.Window && far
}

// free reports whether the event can take the claim.
func (m *model) free(ev engine.Event, rec engine.ClaimRecord) bool {
	if m.mismatch(ev, rec) {
		return false
	}
	switch rec.State {
	case engine.Released:
		return true
	case engine.Leased:
		return !m.clock.Before(rec.LeaseEnd)
	}
	return m.expired(ev, rec)
}

func (m *model) mismatch(ev engine.Event, rec engine.ClaimRecord) bool {
	return ev.Fingerprint != "" && rec.Fingerprint != "" && ev.Fingerprint != rec.Fingerprint && !m.expired(ev, rec)
}

func (m *model) newRecord(ev engine.Event) engine.ClaimRecord {
	rec := engine.ClaimRecord{State: engine.Done, FirstSeen: m.clock, Origin: ev.Origin, Window: ev.Window, Fingerprint: ev.Fingerprint}
	if ev.Window > 0 && !ev.Sent.IsZero() {
		rec.SentUnixMilli = ev.Sent.UnixMilli()
	}
	if ev.Lease > 0 {
		rec.State, rec.LeaseEnd = engine.Leased, m.clock.Add(ev.Lease)
	}
	return rec
}

// expiredUntil returns the week before which a nightly run drops. It counts weeks from the first
// one with claims, and keeps the newest week with claims of any scope before the current week.
func (m *model) expiredUntil(oldest weekbucket.Week, retention int, of func(claimKey) bool) weekbucket.Week {
	kept, first := m.week()-weekbucket.Week(retention), weekbucket.Max
	for k := range m.told.claims {
		if of(k) {
			first = min(first, k.week)
		}
	}
	from := oldest
	if first != weekbucket.Max {
		from = max(from, min(first, kept))
	}
	return max(oldest, min(kept, from+defaultMaxWeeksPerRun, m.told.lowestHold(), m.lastEnded()))
}

// lastEnded returns the newest week with claims before the current week.
func (m *model) lastEnded() (last weekbucket.Week) {
	for k := range m.told.claims {
		if k.week < m.week() {
			last = max(last, k.week)
		}
	}
	return last
}

// claimed records an at-most-once claim. A transaction that saw the dead letter before conflicts.
func (m *model) claimed(ev engine.Event, k claimKey, rec engine.ClaimRecord) {
	m.overtakes(k)
	m.takesOver(ev, k)
	m.told.claims[k] = rec
}

// takesOver ends the leases in other weeks that a claim takes over.
func (m *model) takesOver(ev engine.Event, k claimKey) {
	for _, n := range m.near(ev, k) {
		if rec, there := m.told.claims[n]; there && rec.State == engine.Leased && m.free(ev, rec) && n.week >= m.told.oldestOf(n.scope) {
			rec = ended(rec, engine.Released, "")
			rec.Fingerprint = ""
			m.told.claims[n] = rec
		}
	}
}

// overtakes records that a claim changes a dead-lettered claim that open transactions may have
// seen.
func (m *model) overtakes(k claimKey) {
	if m.told.claims[k].State != engine.DeadLettered {
		return
	}
	for _, changed := range m.open {
		changed[claimName(k)] = true
	}
}

func claimName(k claimKey) string { return "claim " + k.String() }
