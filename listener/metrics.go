package listener

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// An outcome is the result of one delivery.
type outcome string

const (
	handled    outcome = "handled"
	failed     outcome = "failed"
	duplicate  outcome = "duplicate"
	inProgress outcome = "in_progress"
	refused    outcome = "refused"
	storeError outcome = "store_error"
	failOpen   outcome = "fail_open"
	leaseLost  outcome = "lease_lost"
)

var outcomes = [...]outcome{handled, failed, duplicate, inProgress, refused, storeError, failOpen, leaseLost}

// newMessages returns the counter of deliveries. Listeners that share a registry share the counter.
func newMessages(registerer prometheus.Registerer) (*prometheus.CounterVec, error) {
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dedup_listener_messages_total",
		Help: "Deliveries to listeners, by outcome.",
	}, []string{"consumer_scope_id", "queue", "outcome"})
	if registerer == nil {
		return messages, nil
	}
	err := registerer.Register(messages)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if shared, ok := there.ExistingCollector.(*prometheus.CounterVec); ok {
			return shared, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("hapax: listener: registering metrics: %w", err)
	}
	return messages, nil
}

// label returns a name as a label value: quoted unless it is UTF-8, since a scrape of the registry
// fails for other text.
func label(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strconv.Quote(name)
}
