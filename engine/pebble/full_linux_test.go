package pebble_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A smallDisk is a file system of 48 MiB with a store.
type smallDisk struct {
	*testing.T
	dir     string
	claimed int
}

var smallNow = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newSmallDisk(t *testing.T) *smallDisk {
	t.Helper()
	d := &smallDisk{T: t, dir: t.TempDir()}
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skip("a small file system needs root: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(d.dir, syscall.MNT_DETACH) })
	return d
}

func (d *smallDisk) open() (*engine.Engine, error) {
	s, err := pebble.Open(filepath.Join(d.dir, "s"), pebble.Options{PendingBytes: 2 << 20})
	if err != nil {
		return nil, err
	}
	return engine.Open(s, engine.Options{Clock: func() time.Time { return smallNow }, ExpectedPerWeek: 1000})
}

// events returns the events of a batch; every hundred batches are in another week.
func (d *smallDisk) events(from int) (list []engine.Event) {
	for i := range 1000 {
		at := smallNow.AddDate(0, 0, -7*(1+from/100_000%3))
		list = append(list, engine.Event{Scope: "s", ID: fmt.Appendf(nil, "%020d", (from+i)*7919), Time: at, Origin: engine.Origin{Topic: "t"}})
	}
	return list
}

// claimAll claims until the disk is full.
func (d *smallDisk) claimAll(e *engine.Engine) {
	d.Helper()
	err := os.WriteFile(filepath.Join(d.dir, "more"), make([]byte, 24<<20), 0o600)
	for err == nil {
		if _, err = e.TryClaimBatch(d.Context(), d.events(d.claimed)); err == nil {
			d.claimed += 1000
		}
	}
	if !errors.Is(err, syscall.ENOSPC) || d.claimed < 10_000 {
		d.Fatalf("after %d claims: %v", d.claimed, err)
	}
	_ = e.Close()
}

const (
	manyClaims = 200_000
	fullChild  = "HAPAX_PEBBLE_FULL_CHILD"
)

func (d *smallDisk) claimMany(e *engine.Engine) {
	d.Helper()
	for ; d.claimed < manyClaims; d.claimed += 1000 {
		if _, err := e.TryClaimBatch(d.Context(), d.events(d.claimed)); err != nil {
			d.Fatal(err)
		}
	}
}

// fill takes the last byte of the disk with a file of another program.
func (d *smallDisk) fill() (empty func()) {
	d.Helper()
	name := filepath.Join(d.dir, "other")
	f, err := os.Create(name)
	if err != nil {
		d.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, n))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		d.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			d.Fatal(err)
		}
	}
}

// reserve returns the space that the reserve takes.
func (d *smallDisk) reserve() int64 {
	var stat syscall.Stat_t
	if err := syscall.Stat(filepath.Join(d.dir, "s", "hapax-reserve"), &stat); err != nil {
		return 0
	}
	return stat.Blocks * 512
}

// dropAll checks that nothing was lost, and drops all weeks with claims.
func (d *smallDisk) dropAll(e *engine.Engine) {
	d.Helper()
	for _, ev := range [][]engine.Event{d.events(0), d.events(d.claimed - 1000)} {
		rs, err := e.TryClaimBatch(d.Context(), ev)
		for _, r := range rs {
			if r.Verdict != engine.Duplicate {
				d.Fatalf("%v, %v", r.Verdict, err)
			}
		}
	}
	week, _ := weekbucket.Of(smallNow.AddDate(0, 0, -7))
	for e.Retention().OldestWeek() <= week {
		if _, err := e.Retention().DropWeek(d.Context(), e.Retention().OldestWeek()); err != nil {
			d.Fatal(err)
		}
	}
	if err := e.Retention().Reclaimed(d.Context()); err != nil {
		d.Fatal(err)
	}
}

// The store has filled its disk, and another program has taken what was left: it opens, a week is
// dropped, and there is room for claims and for the next full disk.
func TestAStoreOnAFullDiskIsOpenedAndAWeekIsDropped(t *testing.T) {
	if dir := os.Getenv(fullChild); dir != "" {
		d := &smallDisk{T: t, dir: dir}
		e, err := d.open()
		if err != nil {
			t.Fatal(err)
		}
		d.claimMany(e)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	for name, c := range map[string]struct {
		end     func(d *smallDisk, e *engine.Engine)
		refuses bool // claims, as long as no week was dropped
	}{
		"after a failed write": {func(d *smallDisk, e *engine.Engine) { d.claimAll(e) }, false}, // Open removes the tables that did not fit
		"after a clean close": {func(d *smallDisk, e *engine.Engine) {
			d.claimMany(e)
			if err := e.Close(); err != nil {
				d.Fatal(err)
			}
		}, true},
		"after a kill": {func(d *smallDisk, e *engine.Engine) {
			if err := e.Close(); err != nil {
				d.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestAStoreOnAFullDiskIsOpened")
			cmd.Env = append(os.Environ(), fullChild+"="+d.dir)
			var killed *exec.ExitError
			if out, err := cmd.CombinedOutput(); !errors.As(err, &killed) || killed.ExitCode() != -1 {
				d.Fatalf("%v\n%s", err, out)
			}
			d.claimed = manyClaims
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && c.refuses {
				t.Skip("makes 200,000 claims, as the case after a kill does in another process")
			}
			d := newSmallDisk(t)
			e, err := d.open()
			if err != nil {
				t.Fatal(err)
			}
			c.end(d, e)
			if d.reserve() == 0 {
				t.Fatal("there is no reserve")
			}
			d.fill()
			for range 3 { // a process that is started again and again does not use it up
				if e, err = d.open(); err != nil {
					t.Fatal(err)
				}
				_, err := e.TryClaimBatch(t.Context(), []engine.Event{{Scope: "s", ID: []byte("new"), Time: smallNow, Origin: engine.Origin{Topic: "t"}}})
				if refused := errors.Is(err, syscall.ENOSPC); refused != c.refuses || !refused && err != nil {
					t.Fatalf("a claim is refused %v: %v", refused, err)
				}
				_ = e.Close()
			}
			if e, err = d.open(); err != nil {
				t.Fatal(err)
			}
			d.dropAll(e)
			r, err := e.TryClaim(t.Context(), engine.Event{Scope: "s", ID: []byte("newest"), Time: smallNow, Origin: engine.Origin{Topic: "t"}})
			if err != nil || r.Verdict != engine.Claimed {
				t.Fatalf("%v, %v", r.Verdict, err)
			}
			if n := d.reserve(); n < 4<<20 {
				t.Errorf("the reserve has %d bytes again", n)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Without a reserve, what an application puts is refused as its claims are. Removals and drops are not.
func TestWithoutAReserveStateDoesNotFillTheDisk(t *testing.T) {
	d := newSmallDisk(t)
	e, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, value []byte) error {
		return e.Update(t.Context(), func(tx *engine.Tx) error {
			if value == nil {
				return tx.Delete([]byte(key))
			}
			return tx.Put([]byte(key), value)
		})
	}
	_, err = e.TryClaimBatch(t.Context(), d.events(0))
	if err := errors.Join(err, put("old", []byte("v"))); err != nil {
		t.Fatal(err)
	}
	d.claimed = 1000
	if err := errors.Join(e.Close(), os.Remove(filepath.Join(d.dir, "s", "hapax-reserve"))); err != nil {
		t.Fatal(err)
	}
	d.fill()
	if err := os.Truncate(filepath.Join(d.dir, "other"), 43<<20); err != nil {
		t.Fatal(err)
	}
	random, value := rand.NewChaCha8([32]byte{1}), make([]byte, 20<<10)
	for range 3 {
		if e, err = d.open(); err != nil {
			t.Fatal(err)
		}
		for n := 0; err == nil && n < 1000; n++ {
			_, _ = random.Read(value)
			err = put(fmt.Sprint("k", n), value)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("new state: %v", err)
		}
		_ = e.Close()
	}
	if e, err = d.open(); err != nil {
		t.Fatal(err)
	}
	if err := put("old", nil); err != nil {
		t.Fatalf("a removal: %v", err)
	}
	if s, err := e.Stats(); err != nil || !s.Store.WithoutReserve {
		t.Errorf("Stats does not say that there is no reserve: %v", err)
	}
	d.dropAll(e)
	if err := errors.Join(os.Remove(filepath.Join(d.dir, "other")), put("new", value)); err != nil {
		t.Fatal(err)
	}
	if s, err := e.Stats(); err != nil || s.Store.WithoutReserve {
		t.Errorf("Stats says that there is no reserve: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// Tools such as cp and rsync may copy the reserve as a file with holes.
func TestAReserveWithHolesIsMadeAnew(t *testing.T) {
	d := &smallDisk{T: t, dir: t.TempDir()}
	path := filepath.Join(d.dir, "s", "hapax-reserve")
	for range 2 {
		e, err := d.open()
		if err != nil {
			t.Fatal(err)
		}
		if n := d.reserve(); n < 4<<20 {
			t.Errorf("the reserve takes %d bytes", n)
		}
		if err := errors.Join(e.Close(), os.Truncate(path, 0), os.Truncate(path, 4<<20)); err != nil {
			t.Fatal(err)
		}
	}
}
