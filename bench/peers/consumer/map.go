package consumer

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// mapSink is a plain loop that keeps everything in memory.
type mapSink struct {
	order    *Order
	seen     map[uuid.UUID]struct{}
	balances map[int]int64
}

func openMap(_ context.Context, o *Order) (sink, error) {
	return &mapSink{order: o, seen: make(map[uuid.UUID]struct{}), balances: make(map[int]int64)}, nil
}

func (m *mapSink) loops() {}

func (m *mapSink) apply(_ context.Context, partition int32, recs []*kgo.Record) error {
	for _, r := range recs {
		id, err := idOf(r)
		if err != nil {
			return err
		}
		if _, repeat := m.seen[id]; repeat {
			continue
		}
		m.seen[id] = struct{}{}
		p, err := decodePayment(r.Value)
		if err != nil {
			return err
		}
		if m.order.Work != Claims {
			m.balances[m.order.account(partition, p.From)] -= p.Amount
			m.balances[m.order.account(partition, p.To)] += p.Amount
		}
	}
	return nil
}

func (m *mapSink) offsets(context.Context) ([]int64, error) { return nil, nil }

func (m *mapSink) state(context.Context) (Result, error) {
	return Result{Claims: uint64(len(m.seen)), Balances: m.order.fold(m.balances)}, nil
}

func (m *mapSink) close() error { return nil }
