package engine

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Iterations read the store in pages: a small one first, for loops that end early, then larger
// ones.
const (
	firstPageKeys = 64
	maxPageKeys   = 1024
	maxPageBytes  = 1 << 20 // a page ends with the key that reaches this size
)

var errEnough = errors.New("enough")

// readPage returns the first keys in the span with their values, from one snapshot. more reports
// whether there may be further ones.
func (c *core) readPage(span storage.Span, keys int) (page []KeyValue, more bool, err error) {
	size := 0
	err = c.store.ScanState(span, func(key, value []byte) error {
		if len(page) == keys || size >= maxPageBytes {
			return errEnough
		}
		page = append(page, KeyValue{bytes.Clone(key), append([]byte{}, value...)})
		size += len(key) + len(value)
		return nil
	})
	if errors.Is(err, errEnough) {
		return page, true, nil
	}
	if err != nil {
		return nil, false, c.stop(err)
	}
	return page, false, nil
}

// durablePage is readPage as a separate call. It returns when the page is durable.
func (c *core) durablePage(ctx context.Context, span storage.Span, keys int) (page []KeyValue, more bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if err := c.enter(); err != nil {
		return nil, false, err
	}
	defer c.leave()
	if page, more, err = c.readPage(span, keys); err != nil {
		return nil, false, err
	}
	if err := c.settleContext(ctx); err != nil {
		return nil, false, err
	}
	return page, more, nil
}

// pages yields the durable keys in the span with their values, at most limit unless that is 0.
func (c *core) pages(ctx context.Context, span storage.Span, limit int) iter.Seq2[KeyValue, error] {
	return func(yield func(KeyValue, error) bool) {
		rest, left := span, unlimited(limit)
		for keys := firstPageKeys; ; keys = min(2*keys, maxPageKeys) {
			page, more, err := c.durablePage(ctx, rest, min(keys, left))
			if err != nil {
				yield(KeyValue{}, err)
				return
			}
			if len(page) > 0 {
				rest.From = afterKey(page[len(page)-1].Key)
			}
			for _, kv := range page {
				if !yield(kv, nil) {
					return
				}
			}
			if left -= len(page); !more || left == 0 {
				return
			}
		}
	}
}

// unlimited returns limit, or the largest int if it is 0.
func unlimited(limit int) int {
	if limit == 0 {
		return math.MaxInt
	}
	return limit
}
