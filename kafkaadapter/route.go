package kafkaadapter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Route configures how the records of some topics are handled. Topics and Mode are required.
type Route struct {
	// Topics are the topics of this route. Each topic belongs to one route.
	Topics []string
	// Mode is the handler and its guarantee: AtMostOnce or Transactional.
	Mode Mode
	// HandlerTimeout bounds one call of the handler. When it has passed, the handler's context ends
	// with the cause ErrHandlerTimeout, and an error of the handler is a failed attempt. A handler
	// that does not watch its context continues to run, and Consumer.Live reports it. 0 =
	// unbounded.
	HandlerTimeout time.Duration
	// Concurrency lets handlers of one partition run in parallel (Parallel). With the zero value,
	// they run one after the other.
	Concurrency Concurrency
	// DeadLetters configures the topic for records that cannot be handled. It is required for
	// Transactional and for the policy DeadLetter.
	DeadLetters *deadletter.Options

	// Scope is the scope of the claims. Empty means the group's name. Topics with the same scope
	// share their ids: ids that are unique only within their topic need identify.Rules.PerTopic or
	// a scope for each route.
	Scope string
	// SharedScope lets another group claim in the same scope: each event is then handled by only
	// one of the groups.
	SharedScope bool
	// Window makes claims last for a time instead of for their week, like SETNX with a time to
	// live. A copy of an event is a duplicate if it arrives within the window, by the engine's
	// clock, or if the timestamps of the two records are less than the window apart: an outage
	// between two copies does not make the later one new. The event's time has no effect: it may be
	// wrong, differ between copies, or be absent, and TooOld and TooNew do not apply. 0 means that
	// claims last as long as their week is retained. A window is at least a millisecond and at most
	// the engine's retention: a longer one ends Run with an error.
	Window time.Duration
	// Identify has the rules that find the id and the time of a record.
	Identify identify.Rules
	// Fingerprint returns the part of a record that is the same in all copies of its event, for
	// example the value; a hash of 16 bytes is stored with the claim. A record whose id was claimed
	// with another fingerprint is not a copy, and the policy for Mismatch decides about it. If the result is
	// empty, the record is not compared. If Fingerprint is nil, no record is compared, and the
	// second of two records with the same id is a duplicate whatever it contains. The replay of a
	// dead letter is not compared, so that its value can be corrected. Fingerprint is called from
	// several goroutines and must not change the record.
	Fingerprint func(r *kgo.Record) []byte

	// Policies decide about records that cannot be handled once, by case. A case without a policy has its
	// default; nil has all defaults.
	Policies Policies

	// Start is where reading begins if neither the store nor the group has an offset for a
	// partition.
	Start Start

	allowedLateness time.Duration // set by tests
}

// Concurrency says how many handlers of one partition run in parallel. They run in order for each
// key: a handler begins when those of all earlier records with its key have ended. Records of the
// same event are also in order.
//
// With Transactional, each record has a part of the batch's transaction (driver.SubTx): its handler
// does not see the writes of others, and all commit together. Parts are joined in the order of
// offsets, so the effect in the store is the same as if the handlers had run one after the other. A
// handler runs again if it has read what an earlier record of the batch wrote later, or if it ran
// in parallel with an earlier record that failed: effects outside the store happen more often than
// without Concurrency. Failures, attempts and dead letters have the same meaning, and after an
// unclean stop the records that may have been in progress are handled one by one.
type Concurrency struct {
	handlers int
	key      func(*Record) []byte
}

// Parallel runs up to n handlers of one partition in parallel, at most MaxHandlers. Up to 4 times as many
// records are in progress or wait for earlier ones, each with its writes in memory: at most
// limits.TxBytes for a record.
func Parallel(n int) Concurrency { return Concurrency{handlers: n} }

// ByKey returns the concurrency with key in place of the Kafka key of records. key is called in one
// goroutine for each partition, before the record is judged. It must not change the record, which
// the handler gets. Records for which key returns nil are not ordered; an empty key is a key. A
// record for which key panics is handled alone, after all earlier ones.
func (c Concurrency) ByKey(key func(*Record) []byte) Concurrency {
	c.key = key
	return c
}

// MaxHandlers is the limit for Parallel.
const MaxHandlers = 1024

// Start is where reading begins for a partition without an offset in the store or in the group.
type Start uint8

// The starts.
const (
	Earliest Start = iota // the oldest record that the broker has
	Latest                // only records that are newer than the assignment
)

// transactional reports whether handlers run inside the transaction.
func (r *Route) transactional() bool {
	_, ok := r.Mode.(Transactional)
	return ok
}

// decodes reports whether records are decoded for the handler.
func (r *Route) decodes() bool {
	m, ok := r.Mode.(Transactional)
	return ok && m.Decode != nil
}

// handlesBatches reports whether one call handles the records of a batch.
func (r *Route) handlesBatches() bool {
	m, ok := r.Mode.(Transactional)
	return ok && m.HandleBatch != nil
}

// check returns an error for a completed route that cannot work. name is the name of its field.
func (r *Route) check(name string) error {
	switch {
	case len(r.Topics) == 0:
		return fmt.Errorf("%w: %s.Topics is empty: name the topics to consume", ErrOption, name)
	case r.Mode == nil:
		return fmt.Errorf("%w: %s.Mode is nil: set AtMostOnce or Transactional", ErrOption, name)
	case strings.TrimSpace(r.Scope) == "" || len(r.Scope) > limits.ScopeBytes:
		return fmt.Errorf("%w: %s.Scope %q is blank or has more than %d bytes: no event could be claimed; choose another", ErrOption, name, r.Scope, limits.ScopeBytes)
	case r.Start > Latest:
		return fmt.Errorf("%w: %s.Start has no such value: use Earliest or Latest", ErrOption, name)
	case r.Window != 0 && r.Window < time.Millisecond:
		return fmt.Errorf("%w: %s.Window is %v: give at least 1ms, or 0", ErrOption, name, r.Window)
	case r.HandlerTimeout < 0:
		return fmt.Errorf("%w: %s.HandlerTimeout is %v: give 0 or more", ErrOption, name, r.HandlerTimeout)
	}
	if err := checkMode(r.Mode); err != nil {
		return fmt.Errorf("%s.Mode: %w", name, err)
	}
	if err := r.checkConcurrency(name); err != nil {
		return err
	}
	if err := r.Identify.Validate(); err != nil {
		return fmt.Errorf("%w: %s.Identify: %w", ErrOption, name, err)
	}
	if err := r.checkRetryTopics(name); err != nil {
		return err
	}
	for _, header := range slices.Concat(r.Identify.IDHeaders, r.Identify.TimeHeaders) {
		if strings.HasPrefix(header, deadletter.HeaderPrefix) {
			return fmt.Errorf("%w: %s.Identify has the header %q: headers that begin with %s belong to dead letters", ErrOption, name, header, deadletter.HeaderPrefix)
		}
	}
	if r.transactional() && r.DeadLetters == nil {
		return fmt.Errorf("%s: %w", name, ErrNoDeadLetters)
	}
	return r.Policies.check(name, r.DeadLetters != nil)
}

// checkRetryTopics rejects retry topics that the route does not consume.
func (r *Route) checkRetryTopics(name string) error {
	if r.DeadLetters == nil {
		return nil
	}
	for _, topic := range r.DeadLetters.RetryTopics {
		if !slices.Contains(r.Topics, topic) {
			return fmt.Errorf("%w: %s.DeadLetters.RetryTopics has %q, which the route does not consume: add it to Topics", ErrOption, name, topic)
		}
	}
	return nil
}

// checkWindows rejects windows beyond the engine's retention: no record could be claimed.
func checkWindows(routes []Route, eng *engine.Engine) error {
	for i, r := range routes {
		ev := engine.Event{Scope: r.Scope, ID: []byte("w"), Time: time.Now(), Window: r.Window, Origin: engine.Origin{Topic: r.Topics[0]}}
		ev = judged(ev, false)
		if err := eng.CheckEvent(ev); err != nil {
			return fmt.Errorf("%w: Options.Routes[%d].Window: %w", ErrOption, i, err)
		}
	}
	return nil
}

func (r *Route) checkConcurrency(name string) error {
	switch n := r.Concurrency.handlers; {
	case n < 0 || n > MaxHandlers:
		return fmt.Errorf("%w: %s.Concurrency is Parallel(%d): give 0 to %d", ErrOption, name, n, MaxHandlers)
	case n < 2 && r.Concurrency.key != nil:
		return fmt.Errorf("%w: %s.Concurrency has a key, and is Parallel(%d): give 2 or more", ErrOption, name, n)
	case n > 1 && r.handlesBatches():
		return fmt.Errorf("%w: %s has Concurrency and HandleBatch: set Handle, or leave Concurrency out", ErrOption, name)
	}
	return nil
}

// clone returns the route without memory that the application may change.
func (r Route) clone() Route {
	r.Topics, r.Identify.IDHeaders, r.Identify.TimeHeaders = slices.Clone(r.Topics), slices.Clone(r.Identify.IDHeaders), slices.Clone(r.Identify.TimeHeaders)
	if r.DeadLetters != nil {
		letters := *r.DeadLetters
		letters.RetryTopics = slices.Clone(letters.RetryTopics)
		r.DeadLetters = &letters
	}
	return r
}

// checkRoutes checks each route, and that no topic has two routes or is the dead-letter topic of a
// route: an unidentifiable record would be sent to that topic again and again.
func checkRoutes(routes []Route) error {
	if len(routes) == 0 {
		return fmt.Errorf("%w: Options.Routes is empty: give a Route with Topics and a Mode", ErrOption)
	}
	var all []string
	for i := range routes {
		if err := routes[i].check(fmt.Sprintf("Options.Routes[%d]", i)); err != nil {
			return err
		}
		for _, topic := range routes[i].Topics {
			if !topicName.MatchString(topic) {
				return fmt.Errorf("%w: Options.Routes[%d].Topics has %q, which is not the name of a topic, and patterns are not supported: name each topic", ErrOption, i, topic)
			}
			if slices.Contains(all, topic) {
				return fmt.Errorf("%w: Options.Routes[%d].Topics has %q a second time: give each topic one route", ErrOption, i, topic)
			}
			all = append(all, topic)
		}
	}
	for i := range routes {
		for _, topic := range routes[i].Topics {
			if d := routes[i].DeadLetters; d != nil && (d.TopicOf(topic) == "" || slices.Contains(all, d.TopicOf(topic))) {
				return fmt.Errorf("%w: Options.Routes[%d].DeadLetters.Topic is %q for %q, which is empty or consumed as well: name another topic",
					ErrOption, i, d.TopicOf(topic), topic)
			}
		}
	}
	return nil
}

// topicName matches what brokers accept as the name of a topic.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// topics returns the topics of all routes.
func (o *Options) topics() (all []string) {
	for i := range o.Routes {
		all = append(all, o.Routes[i].Topics...)
	}
	return all
}

// letterTopics returns the dead-letter topics of all routes, without duplicates.
func (o *Options) letterTopics() (all []string) {
	for i := range o.Routes {
		r := &o.Routes[i]
		if r.DeadLetters == nil {
			continue
		}
		for _, topic := range r.Topics {
			all = append(all, r.DeadLetters.TopicOf(topic))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// route returns the route of a topic, nil if there is none.
func (o *Options) route(topic string) *Route {
	for i := range o.Routes {
		if slices.Contains(o.Routes[i].Topics, topic) {
			return &o.Routes[i]
		}
	}
	return nil
}

// windowFactor times the number of handlers is how far records that have begun may extend beyond
// the first unsettled one, so that handlers find records of other keys while the next record of a
// key waits.
const windowFactor = 4

// window is the maximum number of records that have begun and are not settled.
func (c *Concurrency) window() int { return windowFactor * c.handlers }
