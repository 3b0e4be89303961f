//go:build unix

package storedir_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

const nobody = 65534

// readAs reads a store in a process of another user.
func (k *kind) readAs(t *testing.T, uid uint32) {
	t.Helper()
	bin, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	test := filepath.Join(filepath.Dir(k.dir), "test")
	if err := os.WriteFile(test, bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(k.dir); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // t.TempDir is private
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(test)
	cmd.Env = append(os.Environ(), "HAPAX_READ="+k.name+":"+k.dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// chmod sets modes and owner of the directory and its files.
func (k *kind) chmod(t *testing.T, uid int, dir, file fs.FileMode) {
	t.Helper()
	for path := range contents(t, k.dir) {
		mode := file
		if path == k.dir {
			mode = dir
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnotherUserReads(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a process of another user")
	}
	inEachState(t, func(t *testing.T, k *kind) {
		k.chmod(t, os.Getuid(), 0o755, 0o644)
		unchanged(t, k.dir, func() { k.readAs(t, nobody) })
	})
}

// To root, modes mean nothing: so another user reads its own store, into which it may not write.
func TestAnOwnerWithoutRightsToWriteReads(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a process of another user")
	}
	inEachState(t, func(t *testing.T, k *kind) {
		k.chmod(t, nobody, 0o500, 0o400)
		unchanged(t, k.dir, func() { k.readAs(t, nobody) })
	})
}
