package kafkaadapter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// appendHead appends a record of a batch, apart from the zeros with which it ends: those of its value,
// which has the given size, and one for no headers.
func appendHead(dst []byte, delta int, size int) []byte {
	var b [32]byte
	head := append(b[:0], 0)                       // attributes
	head = binary.AppendVarint(head, 0)            // timestamp delta
	head = binary.AppendVarint(head, int64(delta)) // offset delta
	head = binary.AppendVarint(head, -1)           // no key
	head = binary.AppendVarint(head, int64(size))  // value
	return append(binary.AppendVarint(dst, int64(len(head)+size+1)), head...)
}

// writeRecords writes records in small pieces: the race detector needs a multiple of their memory.
func writeRecords(w io.Writer, n, size int) error {
	zeros := make([]byte, 1<<16)
	piece := make([]byte, 0, 2<<16)
	for i := range n {
		piece = appendHead(piece, i, size)
		for left := size + 1; left > 0; {
			part := min(left, len(zeros))
			piece, left = append(piece, zeros[:part]...), left-part
			if len(piece) < len(zeros) {
				continue
			}
			if _, err := w.Write(piece); err != nil {
				return err
			}
			piece = piece[:0]
		}
	}
	_, err := w.Write(piece)
	return err
}

// sendRaw produces a batch of n records that is compressed with zstd, as it is, and so often.
func (r *rig) sendRaw(t testing.TB, partition int32, n, size, times int) (compressed int) {
	t.Helper()
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithWindowSize(1<<18), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writeRecords(w, n, size), w.Close()); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: int16(kgo.CodecZstd), LastOffsetDelta: int32(n - 1),
		FirstTimestamp: now, MaxTimestamp: now, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(n), Records: packed.Bytes(),
	}
	raw := batch.AppendTo(nil)
	batch.Length = int32(len(raw) - 12)
	raw = batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	client, id := r.Client(t), r.TopicID(t, r.topic)
	for range times {
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 10_000
		topic := kmsg.NewProduceRequestTopic()
		topic.Topic, topic.TopicID = r.topic, id
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = partition, slices.Clone(raw)
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(t.Context(), client)
		if err == nil {
			err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return len(raw)
}

// watchHeap returns a function that returns the highest size of the heap since the call.
func watchHeap(t *testing.T) (most func() uint64) {
	was := debug.SetGCPercent(10) // little garbage
	t.Cleanup(func() { debug.SetGCPercent(was) })
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	began := m.HeapAlloc
	var high atomic.Uint64
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			runtime.ReadMemStats(&m)
			high.Store(max(high.Load(), m.HeapAlloc))
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(done); <-over })
	return func() uint64 { return high.Load() - min(began, high.Load()) }
}

func onEachMembership(t *testing.T, test func(*testing.T, func(*Options))) {
	for name, change := range map[string]func(*Options){"group": func(*Options) {}, "pinned": pinned(0, 1)} {
		t.Run(name, func(t *testing.T) { test(t, change) })
	}
}

func TestBatchThatDecompressesToTooMuchStopsThePartition(t *testing.T) {
	for name, shape := range map[string]struct{ records, size int }{"one record": {1, 256 << 20}, "many records": {1 << 20, 0}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			r.send(t, 0, "a", "b")
			n := r.sendRaw(t, 0, shape.records, shape.size, 1)
			if n > 1<<20 {
				t.Fatalf("the batch has %d bytes", n)
			}
			r.send(t, 0, "c")
			r.send(t, 1, "d")
			heap := watchHeap(t)
			for range 2 { // and again after a restart
				m := r.start(t, r.work(2, nil), func(o *Options) { o.MaxBufferedBytes = 16 << 20 })
				if e := m.stoppedOne(t); !errors.Is(e, ErrLargeBatch) || e.Reason != "large_batch" || e.Partition != 0 || !strings.Contains(e.Error(), "offsets 2 to") {
					t.Errorf("stopped: %v", e)
				}
				r.untilStored(t, 1, 1) // others are read
				if at := r.stored(t, 0); at != 2 {
					t.Errorf("the store is at %d", at)
				}
				m.stop(t)
			}
			if most := heap(); most > 250<<20 { // the batch needs more
				t.Errorf("the heap grew by %d MiB", most>>20)
			}
			r.checkOnce(t, "a", "b", "d")
		})
	}
}

func TestBatchThatDecompressesToTooMuchIsSkipped(t *testing.T) {
	onEachMembership(t, func(t *testing.T, membership func(*Options)) {
		for _, policy := range []Policy{DeadLetter, Reject} {
			r := newRig(t, 1)
			skip := func(o *Options) {
				o.MaxBufferedBytes = 1 << 20
				o.Routes[0].Policies[LargeBatch], o.Routes[0].Policies[Undecodable] = Reject, policy
			}
			r.send(t, 0, "a")
			r.sendRaw(t, 0, 3, 1<<20, 1)
			r.send(t, 0, "b")
			r.sendRaw(t, 0, 3, 1<<20, 1)
			m := r.start(t, r.work(2, nil), membership, skip)
			r.untilStored(t, 0, 8)
			r.send(t, 0, "c")
			r.untilStored(t, 0, 9)
			m.stop(t)
			r.checkOnce(t, "a", "b", "c")
			if policy == Reject {
				if n := r.letterCount(t); n != 0 {
					t.Errorf("%d dead letters", n)
				}
				continue
			}
			for i, letter := range r.letters(t, 2) {
				got := values(letter)
				want := []string{"1", "5"}[i]
				if got["hapax_dlt_original_offset"] != want || got["hapax_dlt_reason"] != "undecodable" || got["hapax_dlt_omitted"] != "record" || letter.Value != nil ||
					!strings.Contains(got["hapax_dlt_error"], "offsets "+want+" to ") {
					t.Errorf("letter %v", got)
				}
			}
			replayed := r.letters(t, 1)[0] // it is not handled as an event without a value
			r.Produce(t, &kgo.Record{Topic: r.topic, Headers: replayed.Headers})
			m = r.start(t, r.work(2, nil), membership, skip)
			r.untilStored(t, 0, 10)
			m.stop(t)
			if n := len(r.handled()); n != 3 {
				t.Errorf("%d handled", n)
			}
		}
	})
}

// A batch of an aborted transaction has no records for this consumer, however large it is.
func TestLargeBatchOfAnAbortedTransactionIsPassed(t *testing.T) {
	onEachMembership(t, func(t *testing.T, membership func(*Options)) {
		for name, policy := range map[string]Policy{"stop": StopBefore, "skip": Reject} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, 1)
				r.send(t, 0, "a")
				r.transaction(t, kgo.TryAbort, 3<<20)
				r.send(t, 0, "b")
				end := r.Log(t, r.topic, 0).End
				limit := func(o *Options) {
					o.MaxBufferedBytes, o.Routes[0].Policies[LargeBatch] = 1<<20, policy
				}
				m := r.start(t, r.work(2, nil), membership, limit)
				kafkatest.Until(t, "the end of the log, or a stop", func() bool { return r.stored(t, 0) == end || len(m.stops) > 0 })
				if len(m.stops) > 0 {
					t.Errorf("stopped: %v", <-m.stops)
				}
				m.stop(t)
				r.checkOnce(t, "a", "b")
				if n := r.letterCount(t); n != 0 {
					t.Errorf("%d dead letters", n)
				}
				// negative control: the same batch of a transaction that commits
				r.transaction(t, kgo.TryCommit, 3<<20)
				m = r.start(t, r.work(2, nil), membership, limit)
				kafkatest.Until(t, "a stop, or a dead letter", func() bool { return len(m.stops) > 0 || r.letterCount(t) > 0 })
				m.stop(t)
			})
		}
	})
}

// transaction produces a record of zeros in a transaction of its own, which ends in the given way.
func (r *rig) transaction(t *testing.T, end kgo.TransactionEndTry, size int) {
	t.Helper()
	client := r.Client(t, kgo.TransactionalID(r.group), kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(int32(2*size)))
	err := client.BeginTransaction()
	if err == nil {
		err = client.ProduceSync(t.Context(), &kgo.Record{Topic: r.topic, Value: make([]byte, size)}).FirstErr()
	}
	if err == nil {
		err = client.EndTransaction(t.Context(), end)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Many batches below the limit are in one answer of the broker: together they need 64 MiB. While a
// handler runs, the client has as much of them as it takes at once.
func TestBatchesThatDecompressToTooMuchTogether(t *testing.T) {
	onEachMembership(t, func(t *testing.T, membership func(*Options)) {
		const batches, partitions = 32, 2
		r := newRig(t, partitions)
		for p := range int32(partitions) {
			r.sendRaw(t, p, 1, 1<<20, batches)
		}
		var mu sync.Mutex
		most, began := uint64(0), liveHeap()
		m := r.start(t, r.work(2, func(_ context.Context, _ *engine.Tx, rec *Record) error {
			mu.Lock()
			defer mu.Unlock()
			if rec.Offset%4 == 1 {
				most = max(most, liveHeap())
			}
			return nil
		}), membership, func(o *Options) { o.MaxBufferedBytes = 2 << 20 })
		for p := range int32(partitions) {
			r.untilStored(t, p, batches)
		}
		m.stop(t)
		if grown := most - min(began, most); grown > batches*partitions<<19 { // half of all
			t.Errorf("the heap grew by %d MiB", grown>>20)
		}
		if n := len(r.handled()); n < partitions*batches {
			t.Errorf("%d handled", n)
		}
		select {
		case e := <-m.stops:
			t.Errorf("stopped: %v", e)
		default:
		}
	})
}

// liveHeap returns the size of what is reachable on the heap.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestDecompressionIsTheAdapters(t *testing.T) {
	for _, opt := range []kgo.Opt{kgo.MaxDecompressBatchBytes(1 << 20), kgo.WithDecompressor(&feed.Decompressor{})} {
		o := someOptions()
		o.Client = append(o.Client, opt)
		if _, err := New(memEngine(t), o); !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "Decompress") {
			t.Errorf("New: %v", err)
		}
	}
	o := someOptions()
	o.Client = append(o.Client, kgo.WithDecompressor(kgo.DefaultDecompressor()))
	if _, err := New(memEngine(t), o); err != nil {
		t.Error(err)
	}
}
