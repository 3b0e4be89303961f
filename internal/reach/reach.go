// Package reach tells from the hooks of a Kafka client whether the client reaches the brokers.
package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A State says whether brokers answer.
type State int

// The states.
const (
	Never     State = iota // no broker has answered yet
	Refused                // the brokers refuse to authenticate the client
	Connected              // a broker answers
	Lost                   // no broker answers any more
)

// States lists all states, for labels.
var States = [...]State{Never, Refused, Connected, Lost}

// String returns the state in snake case, as in metrics.
func (s State) String() string {
	return [...]string{"never_connected", "authentication_failed", "connected", "lost"}[s]
}

// ErrNothing means that no broker has answered and no attempt has failed: the client may not have been used.
var ErrNothing = errors.New("no broker has answered yet")

// ErrAuthentication means that the broker has refused to authenticate the client.
var ErrAuthentication = errors.New("the broker refuses the authentication: check user, password and mechanism")

var (
	errQuiet  = errors.New("no broker answers")
	errNoWord = errors.New("the broker ends the connection without an answer: check whether TLS and SASL are set on both sides or on none")
)

// A Watch is a hook of clients. Its methods are safe for concurrent use.
type Watch struct {
	// Grace is how long connections may fail without an answer before they count as lost.
	Grace time.Duration
	// Quiet is how long no broker may answer. 0: any time, because the client may have nothing to ask.
	Quiet time.Duration

	mu       sync.Mutex // guards the rest
	answered time.Time  // the last answer of a broker
	failing  time.Time  // the first failure after it
	err      error      // the last failure
	asked    map[int32]bool
}

var (
	_ kgo.HookBrokerConnect = (*Watch)(nil)
	_ kgo.HookBrokerWrite   = (*Watch)(nil)
	_ kgo.HookBrokerRead    = (*Watch)(nil)
)

// State returns the state at a time, and the cause if it is not Connected.
func (w *Watch) State(now time.Time) (State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, err := Lost, w.err
	switch {
	case w.answered.IsZero() && err == nil:
		return Never, ErrNothing
	case w.answered.IsZero():
		state = Never
	case w.failing.After(w.answered) && now.Sub(w.failing) > w.Grace:
	case w.Quiet > 0 && now.Sub(w.answered) > w.Quiet:
		err = fmt.Errorf("%w for %v", errQuiet, now.Sub(w.answered).Round(time.Second))
	default:
		return Connected, nil
	}
	if errors.Is(err, ErrAuthentication) {
		state = Refused
	}
	return state, err
}

// OnBrokerConnect is called with the result of connecting and authenticating.
func (w *Watch) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.asked[meta.NodeID]
	delete(w.asked, meta.NodeID)
	if err == nil {
		return // a broker that demands a password ends a connection without one only after this
	}
	if isRefusal(err) || asked && isEnd(err) {
		err = fmt.Errorf("%w: %w", ErrAuthentication, err)
	}
	w.fail(meta, err)
}

// OnBrokerWrite remembers the brokers that are asked to authenticate the client: some close the
// connection without an answer.
func (w *Watch) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if !authenticates(key) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked == nil {
		w.asked = make(map[int32]bool)
	}
	w.asked[meta.NodeID] = true
}

// OnBrokerRead is called with each answer. Those of the beginning of a connection are OnBrokerConnect's.
func (w *Watch) OnBrokerRead(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if authenticates(key) || key == int16(kmsg.ApiVersions) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.answered = time.Now()
		return
	}
	w.fail(meta, err)
}

func (w *Watch) fail(meta kgo.BrokerMetadata, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, net.ErrClosed) {
		return // the client has ended the request
	}
	if isEnd(err) && w.answered.IsZero() && !errors.Is(err, ErrAuthentication) {
		err = fmt.Errorf("%w: %w", errNoWord, err)
	}
	if !w.failing.After(w.answered) {
		w.failing = time.Now()
	}
	w.err = fmt.Errorf("broker %s: %w", net.JoinHostPort(meta.Host, fmt.Sprint(meta.Port)), err)
}

func authenticates(key int16) bool {
	return key == int16(kmsg.SASLHandshake) || key == int16(kmsg.SASLAuthenticate)
}

func isRefusal(err error) bool {
	for _, refusal := range []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// isEnd reports whether the broker has closed the connection.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}
