package engine

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
)

// scan yields the keys in the span, without their first skip bytes, at most limit unless that is 0.
func (s *txState) scan(span storage.Span, limit, skip int, yield func(KeyValue, error) bool) {
	read, err := s.newScan(span)
	left := unlimited(limit)
	for keys := firstPageKeys; err == nil; keys = min(2*keys, maxPageKeys) {
		var p txPage
		if p, err = s.txPage(span, min(keys, left)); err != nil {
			break
		}
		for _, kv := range p.entries {
			if err = s.noteScan(read, afterKey(kv.Key)); err != nil {
				break
			}
			left--
			if !yield(KeyValue{bytes.Clone(kv.Key[skip:]), append([]byte{}, kv.Value...)}, nil) || left == 0 {
				return
			}
		}
		if err != nil {
			break
		}
		if err = s.endPage(read, &p, span); err == nil && p.end == nil {
			return
		}
		span.From = p.end
	}
	yield(KeyValue{}, err)
}

// newScan records the read of an empty range, which noteScan extends, and returns its index.
func (s *txState) newScan(span storage.Span) (int, error) {
	if err := s.lock(); err != nil {
		return 0, err
	}
	defer s.unlock()
	read, err := s.req.reads.BeginScan(span.Start())
	return read, asLimit(err)
}

// noteScan extends the range that a scan has read up to hi.
func (s *txState) noteScan(read int, hi []byte) error {
	if err := s.status.lock(); err != nil {
		return err
	}
	defer s.unlock()
	return asLimit(s.req.reads.ExtendScan(read, hi))
}

// endPage records that a page was read up to its end, which may be after its last key.
func (s *txState) endPage(read int, p *txPage, span storage.Span) error {
	hi := p.end
	if hi == nil {
		hi = successor(span.Prefix)
	}
	if err := cmp.Or(s.noteScan(read, hi), p.err); err != nil || p.lostTo == 0 {
		return err
	}
	s.status.mu.Lock()
	defer s.unlock()
	return s.status.lose(p.lostTo, string(p.end))
}

// A txPage has the keys in a span up to end, or all of them if end is nil, as a transaction sees
// them.
type txPage struct {
	entries []KeyValue
	end     []byte
	err     error  // error of the last key before end
	lostTo  uint64 // batch that has written the key at end since the transaction began, 0 if none has
}

// txPage reads the next page of a scan: the stored keys as of the start of the transaction, merged
// with the transaction's own writes.
func (s *txState) txPage(span storage.Span, keys int) (p txPage, err error) {
	if err := s.status.lockStore(); err != nil {
		return p, err
	}
	defer s.status.unlockStore()
	stored, more, err := s.core.readPage(span, keys)
	if err != nil {
		return p, err
	}
	if more {
		p.end = afterKey(stored[len(stored)-1].Key)
	}
	read := occ.Range{Lo: span.Start(), Hi: p.end}
	if p.end == nil {
		read.Hi = successor(span.Prefix)
	}
	if key, by := s.history.ChangedIn(&s.req.reads, read); by > 0 {
		p.end, p.lostTo = []byte(key), by
		n, _ := slices.BinarySearchFunc(stored, p.end, func(kv KeyValue, key []byte) int { return bytes.Compare(kv.Key, key) })
		stored = stored[:n]
	}
	p.entries = stored
	return p, s.overlay(&p, span, keys)
}

// overlay merges the transaction's writes in the span into the page, up to its end and at most keys
// of them. It ends the page earlier after that many writes, or at an Add that cannot be resolved.
func (s *txState) overlay(p *txPage, span storage.Span, keys int) error {
	own, end := s.req.writes.in(span, p.end, keys)
	var under []txWrite
	if s.base != nil {
		var err error
		if under, end, err = s.base.writesIn(span, end, keys); err != nil {
			return err
		}
	}
	p.cut(end)
	if len(own) == 0 && len(under) == 0 {
		return nil
	}
	merged := make([]KeyValue, 0, len(p.entries)+len(own)+len(under))
	stored := p.entries
	for len(own) > 0 || len(under) > 0 {
		w, err := nextWrite(&own, &under)
		key := w.name
		if end != nil && key >= string(end) { // a write of own after the end of under
			break
		}
		for len(stored) > 0 && string(stored[0].Key) < key {
			merged = append(merged, stored[0])
			stored = stored[1:]
		}
		var before []byte
		found := len(stored) > 0 && string(stored[0].Key) == key
		if found {
			before, stored = stored[0].Value, stored[1:]
		}
		var value []byte
		if err == nil {
			value, err = w.resolve(before, found)
		}
		if err != nil {
			p.entries, p.end, p.err, p.lostTo = merged, afterKey([]byte(key)), err, 0
			return nil //nolint:nilerr // scan returns p.err after the entries before the key
		}
		if value != nil {
			merged = append(merged, KeyValue{[]byte(key), value})
		}
	}
	p.entries = append(merged, stored...)
	return nil
}

// nextWrite removes and returns the write with the least key of both lists. If both have the key,
// the part's own write replaces the one of the transaction, or is added to it.
func nextWrite(own, under *[]txWrite) (w txWrite, err error) {
	o, b := *own, *under
	switch {
	case len(b) == 0 || len(o) > 0 && o[0].name < b[0].name:
		w, *own = o[0], o[1:]
	case len(o) == 0 || b[0].name < o[0].name:
		w, *under = b[0], b[1:]
	default:
		if w = o[0]; w.isSum {
			w, err = b[0].plus(w.delta)
			w.name = o[0].name
		}
		*own, *under = o[1:], b[1:]
	}
	return w, err
}

// cut shortens the page to end, which must not be after its current end.
func (p *txPage) cut(end []byte) {
	if bytes.Equal(end, p.end) {
		return
	}
	n, _ := slices.BinarySearchFunc(p.entries, end, func(kv KeyValue, key []byte) int { return bytes.Compare(kv.Key, key) })
	p.entries, p.end, p.lostTo = p.entries[:n], end, 0
}

// successor returns the least key greater than all keys that begin with prefix, nil if there is
// none.
func successor(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
