package telemetry

import (
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

// scopes finds the counters of a scope. For a known scope it needs no lock and no look-up of
// labels.
type scopes struct {
	claims   *prometheus.CounterVec
	attempts [len(engine.Verdicts) + 1]prometheus.Counter // by verdict, of all scopes
	overflow prometheus.Counter
	max      int

	mu    sync.Mutex // held while named is replaced
	named atomic.Pointer[map[string]*outcomes]

	other, invalid func() *outcomes // made when first needed
}

// The outcomes are the counters of one scope, by verdict.
type outcomes struct {
	counters [len(engine.Verdicts) + 1]prometheus.Counter
	overflow bool // for all scopes beyond the maximum
}

func newScopes(claims, attempts *prometheus.CounterVec, overflow prometheus.Counter, limit int) *scopes {
	s := &scopes{claims: claims, overflow: overflow, max: limit}
	for _, v := range engine.Verdicts {
		s.attempts[v] = attempts.WithLabelValues(v.String())
	}
	s.named.Store(&map[string]*outcomes{})
	s.invalid = sync.OnceValue(func() *outcomes { return s.outcomes(InvalidScopes) })
	s.other = sync.OnceValue(func() *outcomes {
		o := s.outcomes(OtherScopes)
		o.overflow = true
		return o
	})
	return s
}

// outcomes makes the counters of all verdicts, so that each exists with the value 0 before the
// first verdict.
func (s *scopes) outcomes(label string) *outcomes {
	o := &outcomes{}
	for _, v := range engine.Verdicts {
		o.counters[v] = s.claims.WithLabelValues(label, v.String())
	}
	return o
}

// verdictCounts are indexed by engine.Verdict.
type verdictCounts = [len(engine.Verdicts) + 1]int

// count counts results. For consecutive events of one scope it adds once for each verdict.
func (s *scopes) count(events []engine.Event, results []engine.Result) {
	for at := 0; at < len(events); {
		scope := events[at].Scope
		var n verdictCounts
		end := at
		for ; end < len(events) && events[end].Scope == scope; end++ {
			n[verdict(results[end].Verdict)]++
		}
		s.attempted(&n)
		s.happened(scope, &n)
		at = end
	}
}

// countJudged counts the verdicts of a transaction.
func (s *scopes) countJudged(j *engine.VerdictCounts, committed bool) {
	s.attempted(&j.Kept)
	s.attempted(&j.Undone)
	if committed {
		s.happened(j.Scope, &j.Kept)
	}
}

func (s *scopes) attempted(n *verdictCounts) {
	for v, k := range n {
		if k > 0 {
			s.attempts[verdict(engine.Verdict(v))].Add(float64(k))
		}
	}
}

func (s *scopes) happened(scope string, n *verdictCounts) {
	o, all := s.get(scope), 0
	for v, k := range n {
		if k > 0 {
			o.counters[verdict(engine.Verdict(v))].Add(float64(k))
			all += k
		}
	}
	if o.overflow {
		s.overflow.Add(float64(all))
	}
}

func (s *scopes) get(scope string) *outcomes {
	named := *s.named.Load()
	if o := named[scope]; o != nil {
		return o
	}
	switch {
	case len(scope) > limits.ScopeBytes || strings.TrimSpace(scope) == "":
		return s.invalid()
	case len(named) >= s.max:
		return s.other()
	}
	return s.add(scope)
}

func (s *scopes) add(scope string) *outcomes {
	s.mu.Lock()
	defer s.mu.Unlock()
	named := *s.named.Load()
	if o := named[scope]; o != nil {
		return o
	}
	if len(named) >= s.max {
		return s.other()
	}
	scope = strings.Clone(scope) // it may be a part of a large string
	o := s.outcomes(text(scope))
	named = maps.Clone(named)
	named[scope] = o
	s.named.Store(&named)
	return o
}

// text returns s if it is UTF-8, as labels and attributes must be, and otherwise s in quotes with
// escapes.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strconv.Quote(s)
}

// verdict returns v, or Failed for an invalid verdict, as a call that panics leaves it.
func verdict(v engine.Verdict) engine.Verdict {
	if v == 0 || int(v) > len(engine.Verdicts) {
		return engine.Failed
	}
	return v
}
