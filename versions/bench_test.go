package versions_test

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/versions"
)

const (
	benchBatch   = 1000
	benchPayload = 100
)

// BenchmarkPut puts versions of random rows in transactions of 1000, and in turn writes keys and
// values of the same form to a bare Pebble in synced batches of 1000. One operation is one row in
// each. ratio is puts/s by sets/s.
func BenchmarkPut(b *testing.B) {
	dir := b.TempDir()
	e := openBench(b, filepath.Join(dir, "store"))
	table := mustTable(b, e, versions.Options{})
	raw, err := pebbledb.Open(filepath.Join(dir, "raw"), rawOptions())
	if err != nil {
		b.Fatal(err)
	}
	defer raw.Close()
	var puts, sets time.Duration
	rnd := rand.NewChaCha8([32]byte{})
	b.ResetTimer()
	for done := 0; done < b.N; {
		const turn = 20 * benchBatch
		rows := benchRows(rnd, turn, uint64(done))
		begun := time.Now()
		for at := 0; at < turn; at += benchBatch {
			put(b, e, table, rows[at:at+benchBatch]...)
		}
		puts += time.Since(begun)
		keys := make([][]byte, turn)
		for i := range rows {
			k := append([]byte("versions\x00bench\x00\x01acme\x00\x01"), rows[i].Key...)
			keys[i] = append(binary.BigEndian.AppendUint64(append(k, 0, 1), ^rows[i].Version), "12345678"...)
		}
		begun = time.Now()
		for at := 0; at < turn; at += benchBatch {
			p := raw.NewBatch()
			for i := at; i < at+benchBatch; i++ {
				_ = p.Set(keys[i], rows[i].Payload, nil)
			}
			if err := p.Commit(pebbledb.Sync); err != nil {
				b.Fatal(err)
			}
		}
		sets += time.Since(begun)
		done += turn
	}
	n := float64((b.N + 20*benchBatch - 1) / (20 * benchBatch) * 20 * benchBatch)
	b.ReportMetric(n/puts.Seconds(), "puts/s")
	b.ReportMetric(n/sets.Seconds(), "sets/s")
	b.ReportMetric(sets.Seconds()/puts.Seconds(), "ratio")
}

// rawOptions are the store's options for writing.
func rawOptions() *pebbledb.Options {
	return &pebbledb.Options{
		FormatMajorVersion: pebbledb.FormatNewest, MemTableSize: 32 << 20, CacheSize: 128 << 20,
		L0CompactionThreshold: 10, L0StopWritesThreshold: 64, Logger: quietLogger{},
	}
}

type quietLogger struct{}

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (quietLogger) Fatalf(string, ...any) { panic("fatal") }

func benchRows(rnd *rand.ChaCha8, n int, version uint64) []versions.Row {
	rows := make([]versions.Row, n)
	for i := range rows {
		key, payload := make([]byte, 16), make([]byte, benchPayload)
		_, _ = rnd.Read(key)
		_, _ = rnd.Read(payload)
		rows[i] = versions.Row{Tenant: "acme", Key: key, Version: version + uint64(i), Time: time.UnixMilli(int64(i)), Payload: payload}
	}
	return rows
}

func openBench(b *testing.B, dir string) *engine.Engine {
	store, err := pebble.Open(dir, pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e, err := engine.Open(store, engine.Options{ExpectedPerWeek: 1000})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	return e
}
