package logstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The log is a sequence of frames, each of them applied whole or not at all:
//
//	+----------+--------------+------------+----------------------+--------+
//	| HXLOGFRM | length u64   | synced u64 | operations           | CRC-32C|
//	| 8        | 8            | 8          | length bytes         | 4      |
//	+----------+--------------+------------+----------------------+--------+
//
// length is the length of the operations; synced is the length of the durable part of the log when
// the frame was written; the checksum covers all that precedes it. An operation is a byte, a key
// and a value; the length of each of the latter two precedes it as a uvarint.
const (
	frameMagic  = "HXLOGFRM"
	frameHeader = 8 + 8 + 8
	frameSum    = 4
)

const (
	opPutClaim    = 'c' // key, record
	opRemoveClaim = 'r' // key
	opPutState    = 's' // key, value
	opRemoveState = 'u' // key
	opSeq         = 'q' // the number of the batch of this frame, or of the last one
	opJournal     = 'j' // a batch's number, its entry
	opTrim        = 't' // the lowest number in the journal
	opDrop        = 'd' // the prefix of a bucket
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A frame is a frame under construction.
type frame []byte

func newFrame(synced int64) frame {
	f := append(make(frame, 0, 512), frameMagic...)
	f = binary.BigEndian.AppendUint64(f, 0)
	return binary.BigEndian.AppendUint64(f, uint64(synced))
}

func (f *frame) add(op byte, key, value []byte) {
	b := append(*f, op)
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	*f = append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

// addBatch adds the operations of a batch. Nil removes a key; an empty value is a value.
func (f *frame) addBatch(b *storage.Batch) {
	for _, c := range b.Claims {
		if c.Record == nil {
			f.add(opRemoveClaim, c.Key, nil)
		} else {
			f.add(opPutClaim, c.Key, c.Record)
		}
	}
	for _, s := range b.State {
		if s.Value == nil {
			f.add(opRemoveState, s.Key, nil)
		} else {
			f.add(opPutState, s.Key, s.Value)
		}
	}
	f.add(opSeq, number(b.Seq), nil)
	f.add(opJournal, number(b.Seq), b.Journal)
}

// seal completes the frame.
func (f frame) seal() []byte {
	binary.BigEndian.PutUint64(f[8:], uint64(len(f)-frameHeader))
	return binary.BigEndian.AppendUint32(f, crc32.Checksum(f, castagnoli))
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// nextFrame splits off the first frame of b. ok is false if b does not begin with a whole one.
func nextFrame(b []byte) (ops []byte, synced uint64, rest []byte, ok bool) {
	if len(b) < frameHeader+frameSum || string(b[:8]) != frameMagic {
		return nil, 0, nil, false
	}
	n := binary.BigEndian.Uint64(b[8:])
	if n > uint64(len(b)-frameHeader-frameSum) {
		return nil, 0, nil, false
	}
	end := frameHeader + int(n)
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return nil, 0, nil, false
	}
	return b[frameHeader:end], binary.BigEndian.Uint64(b[16:]), b[end+frameSum:], true
}

// walkLog calls fn with the operations of each frame and returns the length of the intact part of
// the log. The data after that part was being written when the power failed, and no wait has
// confirmed it; if a later frame shows that it was durable, the error is ErrDamaged.
func walkLog(log []byte, fn func(ops []byte) error) (whole int, err error) {
	rest := log
	for {
		ops, _, after, ok := nextFrame(rest)
		if !ok {
			break
		}
		if err := fn(ops); err != nil {
			return 0, err
		}
		rest = after
	}
	whole = len(log) - len(rest)
	for at := 0; ; at++ {
		i := bytes.Index(rest[at:], []byte(frameMagic))
		if i < 0 {
			return whole, nil
		}
		at += i
		if _, synced, _, ok := nextFrame(rest[at:]); ok && synced > uint64(whole) {
			return 0, fmt.Errorf("%w: %s is damaged at byte %d, and was durable up to byte %d", storage.ErrDamaged, logName, whole, synced)
		}
	}
}

// eachOp calls fn with each operation of a frame. The slices share memory with ops.
func eachOp(ops []byte, fn func(op byte, key, value []byte) error) error {
	take := func() ([]byte, bool) {
		n, size := binary.Uvarint(ops)
		if size <= 0 || n > uint64(len(ops)-size) {
			return nil, false
		}
		b := ops[size : size+int(n)]
		ops = ops[size+int(n):]
		return b, true
	}
	for len(ops) > 0 {
		op := ops[0]
		ops = ops[1:]
		key, ok1 := take()
		value, ok2 := take()
		if !ok1 || !ok2 {
			return fmt.Errorf("%w: malformed operation %q", storage.ErrDamaged, op)
		}
		if err := fn(op, key, value); err != nil {
			return err
		}
	}
	return nil
}
