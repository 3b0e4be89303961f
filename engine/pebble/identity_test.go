package pebble

import (
	"encoding/binary"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// At whatever step a power cut interrupts the first batch of a store of an older format, the store
// opens and has what it had. If it has the batch, its format is this build's, so that no older build
// misreads it.
func TestPowerCutAroundTheRaisedFormat(t *testing.T) {
	fsys := crashfs.New()
	old, err := Open("store", Options{FS: fsys, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 10; seq++ {
		mustApply(t, old, batchOf(seq, 10))
	}
	mustClose(t, old)
	sidecar.Pebble.Format++ // as a build of the next format; no other test runs now
	defer func() { sidecar.Pebble.Format-- }()

	c := &clones{fsys: fsys}
	slowly := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.Contains(op.Path, sidecar.IdentityName) {
			time.Sleep(5 * time.Millisecond) // a batch that does not wait for the format is in its log then
		}
		return c.MaybeError(op)
	})
	s, err := Open("store", Options{FS: errorfs.Wrap(fsys, slowly), CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	before, err := contents(s)
	if err != nil {
		t.Fatal(err)
	}
	b := batchOf(s.LastSeq()+1, 1)
	c.armed.Store(true)
	mustApply(t, s, b)
	c.armed.Store(false)
	c.at, c.clones = append(c.at, "anything after the answer"), append(c.clones, fsys.CrashClone(vfs.CrashCloneCfg{}))
	after, err := contents(s)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)

	var raised, applied int
	for i, fsys := range c.clones {
		format := formatOf(t, fsys)
		s, err := Open("store", Options{FS: fsys, CacheBytes: 1 << 20})
		if err != nil {
			t.Errorf("power cut before %s: %v", c.at[i], err)
			continue
		}
		got, err := contents(s)
		switch {
		case err != nil:
			t.Errorf("power cut before %s: %v", c.at[i], err)
		case maps.Equal(got, after):
			applied++
			if format != sidecar.Pebble.Format {
				t.Errorf("power cut before %s: it has the batch, and format %d", c.at[i], format)
			}
		default:
			if !maps.Equal(got, before) {
				t.Errorf("power cut before %s: %d entries that are neither those before the batch nor those after it", c.at[i], len(got))
			}
			mustApply(t, s, b)
			assertContents(t, s, after)
			if format == sidecar.Pebble.Format {
				raised++
			}
		}
		mustClose(t, s)
	}
	t.Logf("%d power cuts, %d after the new format, %d after the batch", len(c.clones), raised+applied, applied)
	if raised == 0 || applied == 0 || raised+applied == len(c.clones) {
		t.Error("the power was not cut before the format was raised, after it and after the batch")
	}
}

func formatOf(t *testing.T, fsys vfs.FS) uint32 {
	t.Helper()
	f, err := fsys.Open("store/" + sidecar.IdentityName)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var head [12]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(head[8:])
}
