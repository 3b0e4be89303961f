package replica

import (
	"github.com/hapax-dev/hapax/engine/storage"
)

// A validity decides which records of a log count. It is a pure function of the records in their
// order, so that all readers decide the same; next takes one record after the other. The rules:
//
//   - The first open counts, and gives the identity. A later one counts if it has this identity and
//     names the open that is the newest when it lands; otherwise it is void.
//   - A batch counts if its token is that of the newest open that counts, all its parts are there in
//     order, and its number follows that of the batch before it.
//   - A record of that token whose number and part were already read is void: it has landed twice. A
//     part without its predecessor makes the rest of its token void.
//   - A gap in the numbers, and an open or a batch that refers to records before the first one, is
//     damage.
type validity struct {
	id    storage.Identity
	token token  // of the newest open that counts, zeros for none
	seq   uint64 // of the newest batch that counts
	void  bool   // the rest of the token is void
	part  uint64 // the parts of the next batch that were read
	parts uint64
	body  []byte // of these parts, or of the batch that isBatch has completed
}

// A verdict is what a record is.
type verdict int

const (
	isVoid  verdict = iota
	isOpen          // an open that counts
	isPart          // a part that counts, of a batch that is not complete
	isBatch         // the last part of a batch that counts: its body is complete
)

// next decides on a record. After an error the log is not read further.
func (v *validity) next(value []byte) (verdict, error) {
	open, batch, err := parseRecord(value)
	switch {
	case err != nil:
		return isVoid, err
	case open != nil:
		return v.open(open)
	case batch != nil:
		return v.batch(batch)
	}
	return isVoid, nil
}

func (v *validity) open(r *openRecord) (verdict, error) {
	if v.token == (token{}) {
		if r.prev != (token{}) {
			return isVoid, damaged("its first open record follows another one: its beginning was removed")
		}
		v.id = r.id
	} else if r.id != v.id || r.prev != v.token {
		return isVoid, nil
	}
	v.token, v.void = r.token, false
	v.forget()
	return isOpen, nil
}

// forget forgets the parts that were read.
func (v *validity) forget() { v.part, v.parts, v.body = 0, 0, v.body[:0] }

func (v *validity) batch(r *batchRecord) (verdict, error) {
	if v.token == (token{}) {
		return isVoid, damaged("it begins with a batch: its beginning was removed")
	}
	next := v.seq + 1
	switch {
	case r.token != v.token || v.void:
		return isVoid, nil
	case r.seq < next || r.seq == next && r.part < v.part:
		return isVoid, nil
	case r.seq > next:
		return isVoid, damaged("batch %d follows batch %d", r.seq, v.seq)
	case r.part > v.part:
		v.void = true
		v.forget()
		return isVoid, nil
	case r.part > 0 && r.parts != v.parts:
		return isVoid, damaged("batch %d has %d parts, and %d", r.seq, v.parts, r.parts)
	}
	if r.part == 0 {
		v.body = v.body[:0]
	}
	v.body = append(v.body, r.body...)
	v.part, v.parts = r.part+1, r.parts
	if v.part < v.parts {
		return isPart, nil
	}
	v.seq, v.part = r.seq, 0
	return isBatch, nil
}
