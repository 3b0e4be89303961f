package storedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

func mustOpen(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func onUnix(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes and links are those of Unix")
	}
}

func TestOpenMakesAPrivateDirectory(t *testing.T) {
	onUnix(t)
	dir := filepath.Join(t.TempDir(), "a", "b", "store")
	for range 2 {
		if d := mustOpen(t, dir); len(d.Warnings()) > 0 {
			t.Error(d.Warnings())
		}
		for d := dir; filepath.Base(d) != "001"; d = filepath.Dir(d) {
			if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
				t.Fatal(d, info.Mode(), err)
			}
		}
	}
}

func TestOpenRejectsWhatOthersControl(t *testing.T) {
	onUnix(t)
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	link := filepath.Join(dir, "link")
	dangling := filepath.Join(dir, "dangling")
	file := filepath.Join(dir, "file")
	err := errors.Join(
		os.Mkdir(open, 0o700), os.Chmod(open, 0o777),
		os.Symlink(t.TempDir(), link),
		os.Symlink(filepath.Join(dir, "missing"), dangling),
		os.WriteFile(file, nil, 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	slash := string(filepath.Separator)
	for _, path := range []string{open, link, link + slash, link + slash + ".", dangling, dangling + slash, file} {
		if _, err := Open(path); !errors.Is(err, storage.ErrForeign) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := Open(""); err == nil {
		t.Error("a directory without a name is accepted")
	}
}

func TestOwnersAndGroups(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("other owners need root")
	}
	const stranger = 12345
	for _, c := range []struct {
		name     string
		uid, gid int
		mode     fs.FileMode
		refused  bool
		warned   bool
	}{
		{"its own", 0, 0, 0o700, false, false},
		{"of another user", stranger, 0, 0o700, true, false},
		{"listed by all", 0, 0, 0o755, false, true},
		{"written by its own group, as a volume of Kubernetes", 0, os.Getgid(), 0o2775, false, true},
		{"written by another group", 0, stranger, 0o2770, true, false},
		{"read by another group", 0, stranger, 0o750, false, true},
		{"written by all", 0, 0, 0o777, true, false},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		mode := c.mode.Perm()
		if c.mode&0o2000 != 0 {
			mode |= fs.ModeSetgid
		}
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, c.uid, c.gid), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		d, err := Open(dir)
		if refused := errors.Is(err, storage.ErrForeign); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if (len(d.Warnings()) > 0) != c.warned {
			t.Errorf("%s: warnings %q", c.name, d.Warnings())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A neighbour who may write to the directory puts links where the store will write.
func TestLinksAreNotFollowed(t *testing.T) {
	onUnix(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "store")
	d := mustOpen(t, dir)
	for _, name := range []string{LockName, "HAPAX.tmp", "data", "inside"} {
		to := victim
		if name == "inside" {
			to = "data"
		}
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Lock(0); !errors.Is(err, storage.ErrForeign) || !strings.Contains(err.Error(), LockName) {
		t.Errorf("Lock: %v", err)
	}
	for _, name := range []string{"data", "inside"} {
		for _, flag := range []int{os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_TRUNC} {
			if _, err := d.OpenFile(name, flag); !errors.Is(err, storage.ErrForeign) {
				t.Errorf("opening a link with flag %#x: %v", flag, err)
			}
		}
	}
	f, err := d.Create("HAPAX.tmp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("ours"); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if b, err := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("the target of a link contains %q, %v", b, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "HAPAX.tmp")); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Errorf("a temporary file that was a link: %v, %v", info, err)
	}
}

func TestALockOfAnotherProgramIsLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	d := mustOpen(t, dir)
	path := filepath.Join(dir, LockName)
	if err := os.WriteFile(path, []byte("of another program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Lock(0); !errors.Is(err, storage.ErrForeign) {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); string(b) != "of another program" {
		t.Errorf("it contains %q, %v", b, err)
	}
}

func TestASecondDirIsLockedOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	first, second := mustOpen(t, dir), mustOpen(t, dir)
	if err := first.Lock(0); err != nil {
		t.Fatal(err)
	}
	if err := second.Lock(0); !errors.Is(err, storage.ErrLocked) {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Lock(0); err != nil {
		t.Error(err)
	}
}

func TestCheckFollowsItsOwnRenames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	d := mustOpen(t, dir)
	if err := d.Lock(0); err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		f, err := d.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	create("data")
	if err := d.Track("data"); err != nil {
		t.Fatal(err)
	}
	create("new")
	if err := errors.Join(d.Rename("new", "data"), d.Check(), d.Rename("data", "moved"), d.Check(), d.Remove("moved"), d.Check()); err != nil {
		t.Fatal(err)
	}
	create("data")
	if err := d.Track("data"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := d.Check(); !errors.Is(err, storage.ErrMoved) {
		t.Error(err)
	}
	make2 := func() error { _, err := d.Create("x"); return err }
	for what, err := range map[string]error{
		"Create": make2(), "Rename": d.Rename(LockName, "x"), "Remove": d.Remove(LockName), "Mkdir": d.Mkdir("x"),
		"RemoveAll": d.RemoveAll(LockName), "Link": d.Link(LockName, "x"), "Recheck": d.Recheck(),
	} {
		if !errors.Is(err, storage.ErrMoved) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMakeAndRemoveSelf(t *testing.T) {
	onUnix(t)
	home := t.TempDir()
	path := filepath.Join(home, "deep", "backup")
	d, err := Make(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
	if _, err := Make(path); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	// another program puts a file there meanwhile
	foreign := filepath.Join(path, "letter.txt")
	if err := errors.Join(d.Lock(0), os.WriteFile(filepath.Join(path, "ours"), nil, 0o600), os.WriteFile(foreign, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	d.RemoveSelf("ours", "never made")
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 {
		t.Error(entries, err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	d.RemoveSelf()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestContains(t *testing.T) {
	home := t.TempDir()
	store := filepath.Join(home, "store")
	d := mustOpen(t, store)
	if err := os.Mkdir(filepath.Join(store, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": store, "deep": filepath.Join(store, "sub")} {
		if err := os.Symlink(to, filepath.Join(home, name)); err != nil {
			t.Skip(err)
		}
	}
	t.Chdir(home)
	for path, want := range map[string]bool{
		"store": true, "store/backup": true, "store/a/b/c": true, "link": true, "link/backup": true, "deep/x": true,
		"store/../store/b": true, "backup": false, "store2": false, ".": false, "storeroom/x": false,
	} {
		if got := d.Contains(path); got != want {
			t.Errorf("Contains(%q) is %v", path, got)
		}
	}
}

func TestProtectChangesItsOwnFilesOnly(t *testing.T) {
	onUnix(t)
	dir := filepath.Join(t.TempDir(), "store")
	d := mustOpen(t, dir)
	for _, name := range []string{"ours", "theirs"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	d.Protect(func(name string) bool { return name == "ours" })
	for name, want := range map[string]fs.FileMode{"ours": 0o600, "theirs": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
