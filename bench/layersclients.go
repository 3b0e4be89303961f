package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/idempotency"
	"github.com/hapax-dev/hapax/internal/wait"
)

// A clientsLedger records the answers that clients got and the data that they sent. Its slices are
// indexed by number.
type clientsLedger struct {
	mu      sync.Mutex // guards the rest
	answers []answer   // the first answer to each request
	sends   []uint64   // how often the row was published: see change
	newest  []change   // of the row
}

// An answer is the answer that a client got.
type answer struct {
	body     []byte // nil: none yet
	executed bool   // an answer was not a replay
	twice    bool   // another answer was not a replay either, or differed
}

func newClientsLedger(n int) clientsLedger {
	return clientsLedger{answers: make([]answer, n), sends: make([]uint64, n), newest: make([]change, n)}
}

// answered records an answer.
func (l *clientsLedger) answered(number uint64, body []byte, replayed bool, r *LayersReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &l.answers[number]
	again := a.executed && !replayed
	a.executed = a.executed || !replayed
	if a.body == nil {
		a.body = body
		r.Requests++
		return
	}
	r.Retries++
	if again || !bytes.Equal(a.body, body) {
		a.twice = true
		return
	}
	r.ReplayedIdentical++
}

// published returns the next changes of a row: one that was published before, if there is one, and
// one or two new ones.
func (l *layersRun) published(row uint64) []change {
	l.clients.mu.Lock()
	defer l.clients.mu.Unlock()
	n := l.clients.sends[row]
	l.clients.sends[row]++
	both := []change{changeOf(l.log.Source.Seed, row, n), changeOf(l.log.Source.Seed, row, n+1)}
	for _, c := range both {
		if c.version > l.clients.newest[row].version {
			l.clients.newest[row] = c
		}
	}
	l.report.Changes += uint64(len(both))
	return both
}

const (
	layersClients = 64
	layersPause   = 5 * time.Millisecond // pause of a client while no process runs
)

// send sends the log until N events were sent: each record as a request, as an event, and as
// changes of a row. It returns the ends of the topics of events and changes.
func (l *layersRun) send(ctx context.Context) (ends []int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	produced := func(_ *kgo.Record, err error) {
		if err != nil {
			cancel(fmt.Errorf("producing: %w", err))
		}
	}
	client := &http.Client{Transport: &idempotency.Transport{Base: &http.Transport{MaxIdleConnsPerHost: layersClients}}}
	defer client.CloseIdleConnections()
	records := make(chan *kgo.Record)
	var all sync.WaitGroup
	for range layersClients {
		all.Go(func() {
			for r := range records {
				number, err := traffic.NumberOf(r, uint64(l.N))
				if err == nil {
					l.broker.Client.Produce(ctx, r, produced)
					for _, c := range l.published(number) {
						l.broker.Client.Produce(ctx, c.record(l.changes.Name), produced)
					}
					err = l.request(ctx, client, number, r)
				}
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	for seq := l.log.Begin(); seq.Distinct() < uint64(l.N) && ctx.Err() == nil; l.report.Records++ {
		records <- seq.Record(l.events.Name)
	}
	close(records)
	all.Wait()
	if err := l.broker.Client.Flush(ctx); err != nil {
		return nil, context.Cause(ctx)
	}
	for _, t := range []*topics.Topic{l.events, l.changes} {
		some, err := t.Ends(ctx)
		if err != nil {
			return nil, err
		}
		ends = append(ends, some...)
	}
	return ends, context.Cause(ctx)
}

// request sends a request until it has an answer, with the requested pauses.
func (l *layersRun) request(ctx context.Context, client *http.Client, number uint64, r *kgo.Record) error {
	ctx = idempotency.WithKey(ctx, string(traffic.IDOf(r)))
	for {
		pause := layersPause
		if at := *l.address.Load(); at != "" {
			status, header, body, err := post(ctx, client, "http://"+at+"/"+l.events.Name, r.Value)
			switch after, _ := strconv.Atoi(header.Get("Retry-After")); {
			case err != nil: // the process is dead or died during the request
			case status == http.StatusCreated:
				l.clients.answered(number, body, header.Get(idempotency.ReplayedHeader) != "", l.report)
				return nil
			case status == http.StatusConflict || status == http.StatusServiceUnavailable:
				pause = max(pause, time.Duration(after)*time.Second)
			case status != http.StatusNotFound: // that is another program's, which has the port of a dead process
				return fmt.Errorf("request %d was answered %d %.200s", number, status, body)
			}
		}
		if err := wait.For(ctx, pause); err != nil {
			return err
		}
	}
}

// post returns an error unless the answer is complete.
func post(ctx context.Context, client *http.Client, url string, value []byte) (status int, h http.Header, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(value))
	if err != nil {
		return 0, nil, nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	body, err = io.ReadAll(res.Body)
	_ = res.Body.Close() // the body was read
	return res.StatusCode, res.Header, body, err
}
