package consumer

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/rawstore"
)

// pebbleSink is the code that an experienced user of Pebble would write: one lock, a Get for each
// id, and a batch with claims, balances and the offset.
type pebbleSink struct {
	order *Order
	db    *pebble.DB

	mu       sync.Mutex // guards what follows, and from the Gets to the end of Apply
	balances map[int]int64
}

func openPebble(_ context.Context, o *Order) (sink, error) {
	db, err := rawstore.OpenPebble(o.Dir, 64<<20, false)
	if err != nil {
		return nil, err
	}
	s := &pebbleSink{order: o, db: db}
	s.balances, err = s.read()
	return s, err
}

// Keys begin with c (claim), a (account) or o (offset).
func pebbleClaim(dst []byte, id uuid.UUID) []byte { return append(append(dst, 'c'), id[:]...) }

func pebbleKey(kind byte, n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))
}

func (s *pebbleSink) apply(_ context.Context, partition int32, recs []*kgo.Record) error {
	b, err := s.decide(partition, recs)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	return errors.Join(b.SyncWait(), b.Close())
}

// decide makes the batch and applies it. The batch is not durable yet on return.
func (s *pebbleSink) decide(partition int32, recs []*kgo.Record) (*pebble.Batch, error) {
	b := s.db.NewBatchWithSize(len(recs) * 40)
	ids := make([]uuid.UUID, len(recs))
	for i, r := range recs {
		id, err := idOf(r)
		if err != nil {
			return b, err
		}
		ids[i] = id
	}
	inBatch := make(map[uuid.UUID]struct{}, len(recs))
	sums := newPayments(s.order.Work)
	var key []byte
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range recs {
		if _, repeat := inBatch[ids[i]]; repeat {
			continue
		}
		key = pebbleClaim(key[:0], ids[i])
		switch _, closer, err := s.db.Get(key); {
		case err == nil:
			_ = closer.Close()
			continue
		case !errors.Is(err, pebble.ErrNotFound):
			return b, err
		}
		inBatch[ids[i]] = struct{}{}
		if err := errors.Join(b.Set(key, nil, nil), sums.add(r)); err != nil {
			return b, err
		}
	}
	return b, s.finish(b, partition, sums, recs[len(recs)-1].Offset+1)
}

// finish adds balances and offset to a batch, and applies it. The caller holds the lock.
func (s *pebbleSink) finish(b *pebble.Batch, partition int32, sums *payments, next int64) error {
	for n, amount := range sums.moved {
		n = s.order.account(partition, n)
		s.balances[n] += amount
		if err := b.Set(pebbleKey('a', n), binary.BigEndian.AppendUint64(nil, uint64(s.balances[n])), nil); err != nil {
			return err
		}
	}
	if err := b.Set(pebbleKey('o', int(partition)), binary.BigEndian.AppendUint64(nil, uint64(next)), nil); err != nil {
		return err
	}
	return s.db.ApplyNoSyncWait(b, pebble.Sync)
}

func (s *pebbleSink) read() (map[int]int64, error) {
	balances := make(map[int]int64)
	err := s.scan('a', func(key, value []byte) {
		balances[int(binary.BigEndian.Uint32(key[1:]))] = int64(binary.BigEndian.Uint64(value))
	})
	return balances, err
}

func (s *pebbleSink) scan(kind byte, found func(key, value []byte)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		found(it.Key(), it.Value())
	}
	return errors.Join(it.Error(), it.Close())
}

func (s *pebbleSink) offsets(context.Context) ([]int64, error) {
	next := make([]int64, len(s.order.Ends))
	err := s.scan('o', func(key, value []byte) {
		next[binary.BigEndian.Uint32(key[1:])] = int64(binary.BigEndian.Uint64(value))
	})
	return next, err
}

func (s *pebbleSink) state(context.Context) (r Result, err error) {
	if err := s.scan('c', func([]byte, []byte) { r.Claims++ }); err != nil {
		return r, err
	}
	kept, err := s.read()
	r.Balances = s.order.fold(kept)
	return r, err
}

func (s *pebbleSink) close() error { return s.db.Close() }
