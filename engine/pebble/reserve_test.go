package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// Logs are counted until a flush has moved them to tables, however many they are.
func TestTheReserveCoversAllLogsThatAreNotInTables(t *testing.T) {
	r := reserve{dir: new(storedir.Dir)}
	logs := make([]*atomic.Int64, 5)
	for i := range logs {
		logs[i] = r.newLog()
		if i < 4 {
			logs[i].Store(1 << (20 + i))
		}
	}
	for _, c := range []struct{ live, mb int64 }{{5, 15}, {4, 15}, {3, 14}, {3, 14}, {1, 8}} {
		r.forgetLogs(func() (int, error) { return int(c.live), nil })
		if n := r.need() - reserveBytes; n != c.mb<<20 {
			t.Errorf("%d logs: %d bytes, %d MiB wanted", c.live, n, c.mb)
		}
	}
	r.forgetLogs(func() (int, error) {
		logs[4].Store(1 << 20) // the new log is written meanwhile
		return 1, nil
	})
	if n := r.need() - reserveBytes; n != 9<<20 {
		t.Errorf("with a new log: %d bytes", n)
	}
}

// Three memtables wait at a time while states are written faster than they are flushed.
func TestTheReserveCoversTheLogsOfStatesThatAreWrittenFast(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "store"), Options{MemTableBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Acquire(); err != nil {
		t.Fatal(err)
	}
	random, value, most := rand.NewChaCha8([32]byte{1}), make([]byte, 200<<10), int64(0)
	for seq := uint64(1); seq <= 600; seq++ {
		_, _ = random.Read(value)
		wait, err := s.Apply(&storage.Batch{Seq: seq, State: []storage.StateWrite{{Key: fmt.Appendf(nil, "k%d", seq), Value: value}}})
		if err != nil {
			t.Fatal(err)
		}
		if seq%16 == 0 {
			if err := wait(); err != nil {
				t.Fatal(err)
			}
			m := s.core.db.Metrics()
			r := &s.core.disk.reserve
			r.mu.Lock()
			size := r.size
			r.mu.Unlock()
			most = max(most, m.WAL.Files)
			if size < int64(m.WAL.Size) {
				t.Fatalf("%d logs with %d bytes, a reserve of %d", m.WAL.Files, m.WAL.Size, size)
			}
		}
	}
	t.Log("logs:", most)
}

func TestAStoreThatCanHaveNoReserveLogsThat(t *testing.T) {
	dir, logged := filepath.Join(t.TempDir(), "store"), new(bytes.Buffer)
	open := func() {
		t.Helper()
		s, err := Open(dir, Options{Logger: slog.New(slog.NewTextHandler(logged, nil))})
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	open()
	if strings.Contains(logged.String(), "reserve") {
		t.Fatal(logged)
	}
	path := filepath.Join(dir, reserveName)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	open()
	if !strings.Contains(logged.String(), "no reserve") || !strings.Contains(logged.String(), "not a regular file") {
		t.Errorf("logged: %s", logged)
	}
}
