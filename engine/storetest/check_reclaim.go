package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
)

// someStates puts states under a prefix and removes every second one.
func someStates(e *env, prefix string, n int) {
	for i := range n {
		e.state(set(fmt.Sprint(prefix, i), strings.Repeat("v", 100)))
	}
	for i := 0; i < n; i += 2 {
		e.state(storage.StateWrite{Key: fmt.Append(nil, prefix, i)})
	}
}

func reclaimStateReturns(e *env) {
	someStates(e, "a/", 100)
	someStates(e, "b/", 10)
	e.settle()
	s := e.s
	e.within(2*e.h.patience, "ReclaimState beside Apply", func() error {
		reclaimed := make(chan error, 1)
		go func() { reclaimed <- s.ReclaimState(context.Background(), storage.Span{Prefix: []byte("a/")}) }()
		for i := range 20 {
			e.state(set(fmt.Sprint("a/new", i), "new"), set(fmt.Sprint("c/", i), "new"))
		}
		return <-reclaimed
	})
	e.check("reclaimed")
	e.within(e.h.patience, "ReclaimState of the same, of nothing and of everything", func() error {
		return errors.Join(
			s.ReclaimState(context.Background(), storage.Span{Prefix: []byte("a/")}),
			s.ReclaimState(context.Background(), storage.Span{Prefix: []byte("nobody")}),
			s.ReclaimState(context.Background(), storage.Span{}))
	})
	e.inEveryForm(func() {})
}

func reclaimStateStopsWithContext(e *env) {
	someStates(e, "a/", 100)
	e.settle()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := e.s
	e.within(e.h.patience, "ReclaimState with a cancelled context", func() error {
		if err := s.ReclaimState(ctx, storage.Span{Prefix: []byte("a/")}); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	e.state(set("a/later", "1"))
	e.check("afterwards")
	e.within(e.h.patience, "ReclaimState after a cancelled one", func() error {
		return s.ReclaimState(context.Background(), storage.Span{Prefix: []byte("a/")})
	})
	e.check("afterwards")
}

func reclaimReturns(e *env) {
	old := bucket("a", week)
	e.claims(noisy(old, 1, 2000)...)
	e.claims(noisy(bucket("a", week+1), 2, 2000)...)
	e.settle()
	e.drop(old)
	s := e.s
	e.within(2*e.h.patience, "Reclaim beside Apply", func() error {
		reclaimed := make(chan error, 1)
		go func() { reclaimed <- s.Reclaim(context.Background(), []storage.Bucket{old}) }()
		for i := range 20 {
			e.put(storage.Batch{Claims: numbered(bucket("b", week), 10*i, 10*i+10)})
		}
		return <-reclaimed
	})
	e.check("reclaimed")
	e.within(e.h.patience, "Reclaim of the same and of nothing", func() error {
		return errors.Join(
			s.Reclaim(context.Background(), []storage.Bucket{old, bucket("nobody", week)}),
			s.Reclaim(context.Background(), nil))
	})
	e.inEveryForm(func() {})
}

func reclaimStopsWithContext(e *env) {
	old := bucket("a", week)
	e.claims(noisy(old, 1, 2000)...)
	e.settle()
	e.drop(old)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := e.s
	e.within(e.h.patience, "Reclaim with a cancelled context", func() error {
		if err := s.Reclaim(ctx, []storage.Bucket{old}); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	e.claims(claim(bucket("a", week+1), "x", "1"))
	e.check("afterwards")
	e.within(e.h.patience, "Reclaim after a cancelled one", func() error {
		return s.Reclaim(context.Background(), []storage.Bucket{old})
	})
	e.check("afterwards")
}
