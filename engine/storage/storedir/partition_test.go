package storedir_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// of is what kafkaadapter.Changelog takes.
type of func(topic string, partition int32, memory int64) storage.Copies

func eachCopies(t *testing.T, test func(t *testing.T, dir string, copies of)) {
	dirs := map[string]func(dir string) of{
		"pebble": func(dir string) of { return pebble.Copies(dir, pebble.Options{}) },
		"bolt":   func(dir string) of { return bolt.Copies(dir, bolt.Options{LockTimeout: 1}) },
	}
	for name, in := range dirs {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "copies")
			test(t, dir, in(dir))
		})
	}
}

// hostile are names of topics that a file system may take for something else, or for each other.
var hostile = []string{
	"orders", "Orders", "ORDERS", "..", ".", "", "../../etc", "/etc/passwd", "a/b", `a\b`, "a\x00b", "nul", "con", "aux.txt", "orders.", "orders ",
	"ordersé", "orders\n", strings.Repeat("x", 249), strings.Repeat("x", 250), "a_b", "a.b", "orders-1",
}

func TestNamesOfPartitionsAreDistinctAndValid(t *testing.T) {
	valid := regexp.MustCompile(`^t-[a-z0-9._-]{0,64}-[0-9a-f]{16}-[0-9]+$`) // also on systems without case
	seen := make(map[string]string)
	for _, topic := range hostile {
		for _, n := range []int32{0, 1, 12} {
			name := (&storedir.Partition{Topic: topic, Partition: n}).Name()
			if !valid.MatchString(name) {
				t.Errorf("%q/%d is called %q", topic, n, name)
			}
			if other, is := seen[name]; is {
				t.Errorf("%q/%d and %s are both called %q", topic, n, other, name)
			}
			seen[name] = fmt.Sprintf("%q/%d", topic, n)
		}
	}
}

func TestEachPartitionHasItsCopy(t *testing.T) {
	eachCopies(t, func(t *testing.T, dir string, copies of) {
		ids := make(map[string]storage.Identity)
		for _, topic := range []string{"orders", "Orders", "../orders"} {
			c, id := copies(topic, 1, 4<<20), storage.NewIdentity()
			if _, err := c.Open(); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%q is there: %v", topic, err)
			}
			s, err := c.Create(id)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := copies(topic, 1, 0).Open(); !errors.Is(err, storage.ErrLocked) {
				t.Errorf("%q is opened twice: %v", topic, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			ids[topic] = id
		}
		for topic, id := range ids {
			s, err := copies(topic, 1, 0).Open()
			if err != nil || s.Identity() != id {
				t.Fatalf("%q is another one: %v", topic, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
			t.Errorf("beside the directory of the copies: %v, %v", entries, err)
		}
	})
}

func TestDirectoryOfAnotherPartitionIsRefused(t *testing.T) {
	eachCopies(t, func(t *testing.T, dir string, copies of) {
		s, err := copies("orders", 1, 0).Create(storage.NewIdentity())
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		name := func(n int32) string {
			return filepath.Join(dir, (&storedir.Partition{Topic: "orders", Partition: n}).Name())
		}
		if err := os.Rename(name(1), name(2)); err != nil {
			t.Fatal(err)
		}
		c := copies("orders", 2, 0)
		_, err = c.Open()
		_, err2 := c.Create(storage.NewIdentity())
		for _, err := range []error{err, err2, c.Remove()} {
			if !errors.Is(err, storage.ErrForeign) || !strings.Contains(err.Error(), "another partition") {
				t.Errorf("the directory of partition 1 as that of partition 2: %v", err)
			}
		}
		if err := os.Rename(name(2), name(1)); err != nil {
			t.Fatal(err)
		}
		if err := copies("orders", 1, 0).Remove(); err != nil {
			t.Errorf("removing it by its own name: %v", err)
		}
		if _, err := copies("orders", 1, 0).Open(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after it was removed: %v", err)
		}
	})
}

func TestLinkedDirectoryOfAPartitionIsRefused(t *testing.T) {
	eachCopies(t, func(t *testing.T, dir string, copies of) {
		elsewhere := t.TempDir()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, filepath.Join(dir, (&storedir.Partition{Topic: "orders"}).Name())); err != nil {
			t.Skip(err)
		}
		if _, err := copies("orders", 0, 0).Create(storage.NewIdentity()); !errors.Is(err, storage.ErrForeign) {
			t.Errorf("through a link: %v", err)
		}
	})
}
