package reach_test

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/internal/reach"
)

func cluster(t *testing.T, o ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, o...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// listen serves connections until the test ends, and returns its address.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	return l.Addr().String()
}

func password(word string) kgo.Opt {
	return kgo.SASL(plain.Auth{User: "user", Pass: word}.AsMechanism())
}

// untilState waits for a state with a cause that has the text.
func untilState(t *testing.T, w *reach.Watch, want reach.State, text string) {
	t.Helper()
	var s reach.State
	var err error
	kafkatest.Until(t, "the state "+want.String()+" with "+text, func() bool {
		s, err = w.State(time.Now())
		return s == want && (err == nil) == (want == reach.Connected) && (err == nil || strings.Contains(err.Error(), text))
	})
	t.Logf("%v: %v", s, err)
	if want == reach.Refused && !errors.Is(err, reach.ErrAuthentication) {
		t.Errorf("%v", err)
	}
}

func TestStates(t *testing.T) {
	open, closed := cluster(t), cluster(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "right"))
	secure := httptest.NewTLSServer(nil)
	t.Cleanup(secure.Close)
	// a Kafka broker takes the beginning of TLS for a size that is too large
	strict := listen(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 4)) })
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	for name, tt := range map[string]struct {
		o    []kgo.Opt
		want reach.State
		text string
	}{
		"nothing listens": {[]kgo.Opt{kgo.SeedBrokers(nobody.Addr().String())}, reach.Never, "refused"},
		"wrong password":  {[]kgo.Opt{kgo.SeedBrokers(closed.ListenAddrs()...), password("wrong")}, reach.Refused, "password"},
		"right password":  {[]kgo.Opt{kgo.SeedBrokers(closed.ListenAddrs()...), password("right")}, reach.Connected, ""},
		"no password":     {[]kgo.Opt{kgo.SeedBrokers(closed.ListenAddrs()...)}, reach.Never, "SASL"},
		"TLS to plain":    {[]kgo.Opt{kgo.SeedBrokers(strict), kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12})}, reach.Never, "TLS"},
		"plain to TLS":    {[]kgo.Opt{kgo.SeedBrokers(secure.Listener.Addr().String())}, reach.Never, "broker 127"},
		"plain":           {[]kgo.Opt{kgo.SeedBrokers(open.ListenAddrs()...)}, reach.Connected, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &reach.Watch{}
			if s, err := w.State(time.Now()); s != reach.Never || err == nil {
				t.Errorf("at first: %v, %v", s, err)
			}
			c, err := kgo.NewClient(append(tt.o, kgo.WithHooks(w), kgo.ConsumeTopics("topic"), kgo.ConsumerGroup("group"))...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.CloseAllowingRebalance)
			untilState(t, w, tt.want, tt.text)
		})
	}
}

func TestConnectionIsLostAndComesBack(t *testing.T) {
	c := cluster(t)
	w := &reach.Watch{Grace: time.Millisecond, Quiet: time.Minute}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.WithHooks(w), kgo.ConsumeTopics("topic"), kgo.ConsumerGroup("group"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseAllowingRebalance)
	untilState(t, w, reach.Connected, "")
	if s, err := w.State(time.Now().Add(time.Hour)); s != reach.Lost || err == nil {
		t.Errorf("after an hour without an answer: %v, %v", s, err)
	}
	c.Close()
	untilState(t, w, reach.Lost, "")
	w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, nil)
	if s, err := w.State(time.Now()); s != reach.Lost {
		t.Errorf("before a broker has answered: %v, %v", s, err)
	}
	w.OnBrokerRead(kgo.BrokerMetadata{}, int16(kmsg.Metadata), 0, 0, 0, nil)
	if s, err := w.State(time.Now()); s != reach.Connected || err != nil {
		t.Errorf("when a broker is back: %v, %v", s, err)
	}
}

// A client that has nothing to ask has an old answer.
func TestClientIsNotLostWithItsFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, broker := &reach.Watch{Grace: 10 * time.Second}, kgo.BrokerMetadata{Host: "b", Port: 1}
		w.OnBrokerRead(broker, int16(kmsg.Metadata), 0, 0, 0, nil)
		time.Sleep(4 * time.Minute)
		w.OnBrokerConnect(broker, 0, nil, errors.New("connection refused"))
		if state, err := w.State(time.Now()); state != reach.Connected {
			t.Errorf("%v after the first failure: %v", state, err)
		}
		time.Sleep(time.Minute)
		if state, _ := w.State(time.Now()); state != reach.Lost {
			t.Errorf("%v after a minute of failures", state)
		}
	})
}
