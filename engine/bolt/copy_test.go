package bolt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// stateBatch returns a batch that puts a state and replaces another one.
func stateBatch(seq uint64) *storage.Batch {
	value := bytes.Repeat(fmt.Append(nil, seq, " "), 100)
	return &storage.Batch{Seq: seq, State: []storage.StateWrite{{Key: fmt.Append(nil, "h", seq), Value: value}, {Key: []byte("hlast"), Value: value}}}
}

func TestCopyIsMadeKilledAndRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copy")
	c := CopyIn(dir, Options{LockTimeout: shortLock})
	if _, err := c.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a copy that is not there: %v", err)
	}
	id := storage.NewIdentity()
	s, err := c.Create(id)
	if err != nil || s.Identity() != id {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 20; seq++ {
		mustApply(t, s.(*Store), stateBatch(seq))
	}
	killed, err := CopyIn(cloneOpen(t, dir), Options{}).Open()
	if err != nil || killed.LastSeq() != 20 || killed.Identity() != id {
		t.Fatal(killed, err)
	}
	if err := errors.Join(killed.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(storage.NewIdentity()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating a copy over another: %v", err)
	}
	foreign := filepath.Join(dir, "letter.txt")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("removing a directory with another file: %v", err)
	}
	if err := errors.Join(os.Remove(foreign), c.Remove()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it was removed: %v", err)
	}
	again, err := c.Create(id)
	if err != nil || again.LastSeq() != 0 {
		t.Fatal(again, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// A power cut leaves any of the pages that were written since the last sync. The copy is then damaged, or
// has a prefix of the batches.
func TestTornCopyIsDamagedOrAPrefix(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copy")
	s, err := CopyIn(dir, Options{}).Create(storage.NewIdentity())
	if err != nil {
		t.Fatal(err)
	}
	read := func() []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	versions := [][]byte{read()}
	for seq := uint64(1); seq <= 12; seq++ {
		mustApply(t, s.(*Store), stateBatch(seq))
		versions = append(versions, read())
	}
	defer s.Close()
	rnd := rand.New(rand.NewPCG(1, 2))
	damaged, whole := 0, 0
	for range 120 / sparse {
		torn := bytes.Clone(versions[len(versions)-1])
		for at := 0; at < len(torn); at += 4096 {
			if from := versions[rnd.IntN(len(versions))]; rnd.IntN(8) == 0 && at+4096 <= len(from) {
				copy(torn[at:at+4096], from[at:])
			}
		}
		clone := cloneOpen(t, dir)
		if err := os.WriteFile(filepath.Join(clone, fileName), torn, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := CopyIn(clone, Options{}).Open()
		if errors.Is(err, storage.ErrDamaged) {
			damaged++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		whole++
		for seq := uint64(1); seq <= 12; seq++ {
			if value, found, err := again.State(fmt.Append(nil, "h", seq)); err != nil || found != (seq <= again.LastSeq()) || found && !bytes.Equal(value, stateBatch(seq).State[0].Value) {
				t.Fatalf("the last batch is %d, and batch %d is %q, %v, %v", again.LastSeq(), seq, value, found, err)
			}
		}
		_ = again.Close()
	}
	if damaged == 0 || whole == 0 {
		t.Errorf("%d are damaged, %d are not", damaged, whole)
	}
}

// A copy may lack acknowledged claims, and a store of its own is all that there is: neither is opened,
// or removed, as the other. A backup of a copy is a store of its own.
func TestCopyIsAnotherKindOfStore(t *testing.T) {
	dir, backup := filepath.Join(t.TempDir(), "copy"), filepath.Join(t.TempDir(), "backup")
	s, err := CopyIn(dir, Options{}).Create(storage.NewIdentity())
	if err != nil {
		t.Fatal(err)
	}
	mustApply(t, s.(*Store), stateBatch(1))
	if err := errors.Join(s.Backup(t.Context(), backup), s.Verify(t.Context(), func(problem string) { t.Error(problem) }), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("a copy is opened as a store: %v", err)
	}
	own, err := Open(backup, Options{})
	if err != nil || own.LastSeq() != 1 || own.Close() != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(backup, fileName), 100); err != nil { // it is damaged, too
		t.Fatal(err)
	}
	c := CopyIn(backup, Options{})
	if _, err := c.Open(); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("a store is opened as a copy: %v", err)
	}
	if _, err := c.Create(storage.NewIdentity()); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("a copy is created over a store: %v", err)
	}
	if err := c.Remove(); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("a store is removed as a copy: %v", err)
	}
}
