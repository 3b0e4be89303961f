package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A Claim is a durable claim in a bucket. The caller owns ID.
type Claim struct {
	ID     []byte
	Record ClaimRecord
}

// claimsPerPage is the number of claims that queries.claims reads ahead of its loop.
const claimsPerPage = 256

// queries answer questions about what is stored, for Admin and Reader.
type queries struct {
	core   *core
	finder *finder
}

// claims is Admin.Claims.
func (q *queries) claims(ctx context.Context, b storage.Bucket, after []byte) iter.Seq2[Claim, error] {
	return func(yield func(Claim, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		pages, result, err := q.claimPages(ctx, b, after)
		if err != nil {
			cancel()
			yield(Claim{}, err)
			return
		}
		defer func() { // also if the loop panics
			cancel()
			for range pages { // the scan ends first
			}
		}()
		for page := range pages {
			for _, c := range page {
				if !yield(c, nil) {
					return
				}
			}
		}
		if err := <-result; err != nil {
			yield(Claim{}, err)
		}
	}
}

// claimPages scans a bucket in a separate goroutine, which Close cancels. It closes pages after the
// scan, whose error it returns.
func (q *queries) claimPages(ctx context.Context, b storage.Bucket, after []byte) (pages chan []Claim, result chan error, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if n := len(b.Scope); n == 0 || n > limits.ScopeBytes {
		return nil, nil, &ArgumentError{"bucket's scope", fmt.Sprintf("has %d bytes: give 1 to %d", n, limits.ScopeBytes)}
	}
	if err := q.core.enter(); err != nil {
		return nil, nil, err
	}
	span := storage.Span{Prefix: b.AppendPrefix(nil)}
	if len(after) > 0 {
		span.From = append(b.AppendKey(nil, after), 0)
	}
	pages, result = make(chan []Claim), make(chan error, 1)
	go func() {
		defer q.core.leave()
		defer close(pages)
		result <- q.sendClaims(ctx, b, span, pages)
	}()
	return pages, result, nil
}

func (q *queries) sendClaims(ctx context.Context, b storage.Bucket, span storage.Span, pages chan<- []Claim) error {
	scan, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.core.work, cancel)()
	if b.Week < q.finder.retained.oldestOf(b.Scope) {
		return nil
	}
	var page []Claim
	var own error // the error of a canceled scan, not of the store
	send := func() error {
		if own = q.core.settleContext(scan); own != nil {
			return own
		}
		select {
		case pages <- page:
			page = nil
			return nil
		case <-scan.Done():
			own = scan.Err()
			return own
		}
	}
	err := q.core.store.Scan(scan, span, func() {}, func(key, record []byte) error {
		_, id, err := storage.ParseKey(key)
		if err != nil {
			return err
		}
		rec, err := q.finder.parse(record)
		if b.Week < q.finder.retained.oldestOf(b.Scope) {
			return nil // its names may already be freed
		}
		if err != nil {
			return err
		}
		if page = append(page, Claim{id, rec}); len(page) < claimsPerPage {
			return nil
		}
		return send()
	})
	if err == nil && len(page) > 0 {
		err = send()
	}
	switch {
	case err == nil:
		return nil
	case q.core.work.Err() != nil && ctx.Err() == nil:
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case own != nil && errors.Is(err, own):
		return own
	}
	return q.core.stop(err)
}

// offsets is Admin.Offsets.
func (q *queries) offsets(ctx context.Context, group string) (map[OffsetKey]Offset, error) {
	span := storage.Span{Prefix: []byte{stateOffset}}
	if group != "" {
		if err := (OffsetKey{Group: group, Topic: "-"}).check(); err != nil {
			return nil, err
		}
		span.Prefix = appendBytes(span.Prefix, []byte(group))
	}
	offsets := make(map[OffsetKey]Offset)
	for kv, err := range q.core.pages(ctx, span, 0) {
		if err != nil {
			return nil, err
		}
		p, err := parsePosition(kv.Key)
		if err == nil {
			offsets[p], err = parseOffset(kv.Value)
		}
		if err != nil {
			return nil, q.core.stop(err)
		}
	}
	return offsets, nil
}

// offset is Admin.Offset.
func (q *queries) offset(ctx context.Context, p OffsetKey) (o Offset, found bool, err error) {
	if err := errors.Join(ctx.Err(), p.check()); err != nil {
		return Offset{}, false, err
	}
	if err := q.core.enter(); err != nil {
		return Offset{}, false, err
	}
	defer q.core.leave()
	value, found, err := q.core.store.State(p.stateKey())
	if err == nil && found {
		o, err = parseOffset(value)
	}
	if err != nil {
		return Offset{}, false, q.core.stop(err)
	}
	if err := q.core.settleContext(ctx); err != nil {
		return Offset{}, false, err
	}
	return o, found, nil
}
