package outbox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/entry"
)

// Produce would wait for a small buffer while the broker is unreachable, beyond the lease and the
// end of Run.
func TestBufferOfTheClientHoldsABatch(t *testing.T) {
	opt := Options{Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), kgo.MaxBufferedBytes(1000), kgo.MaxBufferedRecords(1)}}
	c, err := kgo.NewClient(clientOptions(&opt, storage.Identity{}, new(batchLimits).of, new(holds))...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := c.OptValue(kgo.MaxBufferedBytes); n != int64(0) {
		t.Errorf("a buffer of %v bytes", n)
	}
	if n := c.OptValue(kgo.MaxBufferedRecords); n != int64(2*MaxBatchEntries) {
		t.Errorf("a buffer of %v records", n)
	}
}

// The broker must not abort a transaction of which the relay still awaits the end.
func TestTransactionsOutlastTheirBatches(t *testing.T) {
	for batch, want := range map[time.Duration]time.Duration{time.Second: time.Minute, 2 * time.Minute: 6 * time.Minute} {
		opt := Options{Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}, Batch: Batch{Time: batch}, ExactlyOnce: &ExactlyOnce{ProgressTopic: "progress"}}
		c, err := kgo.NewClient(clientOptions(&opt, storage.Identity{}, new(batchLimits).of, new(holds))...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if d := c.OptValue(kgo.TransactionTimeout); d != want {
			t.Errorf("a batch of %v: %v, want %v", batch, d, want)
		}
	}
}

// A handler may copy the headers of the record that it handles, with its id and its time.
func TestIDAndTimeReplaceHeadersOfTheApplication(t *testing.T) {
	i := &item{Entry: entry.Entry{ID: "own", Time: start.UnixMilli(), Headers: []entry.Header{
		{Key: correlation.MessageID, Value: []byte("other")}, {Key: "h", Value: []byte("v")}, {Key: correlation.MessageID, Value: nil},
		{Key: correlation.MessageTime, Value: []byte("2020-01-01T00:00:00Z")},
	}}}
	if got, want := fmt.Sprintf("%q", i.record().Headers), fmt.Sprintf("%q", []kgo.RecordHeader{
		{Key: "h", Value: []byte("v")}, {Key: correlation.MessageID, Value: []byte("own")},
		{Key: correlation.MessageTime, Value: []byte("2026-03-04T12:00:00Z")},
	}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Hooks of the client, such as one that encrypts the value in place, change the record that is sent.
// What is retried, parked and published in the end is the message.
func TestChangesOfARecordAreNotThoseOfTheMessage(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{Retry: Retry{Attempts: 2}})
	s := r.session(relay)
	read := func(rec *kgo.Record) string {
		return fmt.Sprintf("%s %s %s %s", rec.Key, rec.Value, rec.Headers[0].Value, rec.Headers[1].Value)
	}
	var sent []string
	r.broker.setAnswer(func(rec *kgo.Record, try int) error {
		sent = append(sent, read(rec))
		for _, b := range [][]byte{rec.Key, rec.Value, rec.Headers[0].Value, rec.Headers[1].Value} {
			for i := range b {
				b[i] = '!'
			}
		}
		rec.Headers, rec.Topic = nil, "elsewhere"
		return errBad
	})
	send(t, r.eng, engine.Message{ID: "m", Topic: "out", Key: []byte("key"), Value: []byte("value"), Headers: []engine.MessageHeader{{Key: "h", Value: []byte("header")}}})
	for range 2 {
		r.step(s)
		r.clock.advance(DefaultMaxBackoff)
	}
	for m, err := range relay.Parked(ctx) {
		if err != nil || string(m.Key) != "key" || string(m.Value) != "value" || string(m.Headers[0].Value) != "header" {
			t.Errorf("parked %+v, %v", m, err)
		}
		m.Key[0], m.Value[0], m.Headers[0].Value[0] = '!', '!', '!' // the copy of the caller
	}
	if err := relay.Redrive(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	r.step(s)
	const want = "key value header m"
	if !slices.Equal(sent, []string{want, want, want}) {
		t.Errorf("sent %q, want %q each time", sent, want)
	}
}

func TestOnlyErrorsAboutTheMessageAreRefusals(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{kerr.MessageTooLarge, true},
		{fmt.Errorf("producing: %w", kerr.InvalidRecord), true},
		{kerr.UnknownTopicOrPartition, true},
		{kerr.TopicAuthorizationFailed, true},
		{fmt.Errorf("invalid record partitioning choice of 7 from 3 available"), true},
		{kerr.NotEnoughReplicas, false},
		{kerr.SaslAuthenticationFailed, false},
		{kerr.ClusterAuthorizationFailed, false},
		{kerr.InvalidProducerEpoch, false},
		{kgo.ErrRecordTimeout, false},
		{kgo.ErrClientClosed, false},
		{errDown, false},
		{fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}), false},
		{io.ErrUnexpectedEOF, false},
		{fmt.Errorf("unable to dial: %w", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), false},
		{errors.New("the token server of SASL does not answer"), false},
		{context.DeadlineExceeded, false},
		{errBatchTime, false},
	} {
		if got := refused(c.err); got != c.want {
			t.Errorf("%v: refused %v", c.err, got)
		}
	}
}
