package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/wait"
)

// Common are the options of all workloads.
type Common struct {
	Store StoreName `help:"Store to use: pebble or bolt." enum:"pebble,bolt" default:"pebble"`
	Dir   string    `help:"${dir}" type:"dir"` // "": a temporary one, which is removed
}

// A StoreName selects the store of a run. The empty name is Pebble.
type StoreName string

// The stores.
const (
	Pebble StoreName = "pebble"
	Bolt   StoreName = "bolt"
)

// A storeKind is the data of a store that a run needs.
type storeKind struct {
	open func(dir string, t tuning) (storage.Store, error)
	raw  []rawSetting // settings of the bare store that are tried
	// holdsClaims reports whether the file with that name contains claims. Logs and sidecars do
	// not.
	holdsClaims func(file string) bool
}

// A tuning of a store. The zero value has its defaults.
type tuning struct {
	smallTables bool
	cacheBytes  int64
	slowSync    time.Duration // how much longer each sync of a file takes
}

// fs returns the machine's file system, with slow syncs if they are set.
func (t tuning) fs() vfs.FS {
	if t.slowSync == 0 {
		return vfs.Default
	}
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			time.Sleep(t.slowSync)
		}
		return nil
	}))
}

var storeKinds = map[StoreName]storeKind{
	Pebble: {
		open: func(dir string, t tuning) (storage.Store, error) {
			return pebble.Open(dir, pebble.Options{SmallTables: t.smallTables, CacheBytes: t.cacheBytes, FS: t.fs()})
		},
		raw: []rawSetting{
			{"memtable=8MiB", openRawPebble(8 << 20)},
			{"memtable=64MiB", openRawPebble(64 << 20)},
		},
		holdsClaims: func(file string) bool { return strings.HasSuffix(file, ".sst") },
	},
	Bolt: {
		open: func(dir string, t tuning) (storage.Store, error) {
			switch {
			case t.smallTables:
				return nil, fmt.Errorf("%w: %s has no tables to make small: leave --small-tables out", ErrUsage, Bolt)
			case t.cacheBytes != 0:
				return nil, fmt.Errorf("%w: %s has no block cache: leave --cache-mib out", ErrUsage, Bolt)
			case t.slowSync > 0:
				return nil, fmt.Errorf("%w: syncs of %s cannot be made slow: leave --slow-sync out", ErrUsage, Bolt)
			}
			return bolt.Open(dir, bolt.Options{})
		},
		raw:         []rawSetting{{"freelist=map", openRawBolt}},
		holdsClaims: func(file string) bool { return strings.HasSuffix(file, ".bolt") },
	},
}

func (n StoreName) kind() (storeKind, error) {
	if n == "" {
		n = Pebble
	}
	k, ok := storeKinds[n]
	if !ok {
		return k, fmt.Errorf("%w: there is no store %q: choose %s or %s", ErrUsage, n, Pebble, Bolt)
	}
	return k, nil
}

// An opened engine, and the store under it for calls about sizes. The engine owns the store.
type opened struct {
	Engine *engine.Engine
	store  storage.Store
	kind   storeKind
	dir    string
}

func openEngine(name StoreName, dir string, t tuning, opt engine.Options) (*opened, error) {
	kind, err := name.kind()
	if err != nil {
		return nil, err
	}
	store, err := kind.open(dir, t)
	if err != nil {
		return nil, fmt.Errorf("opening the store in %s: %w", dir, err)
	}
	e, err := engine.Open(store, opt)
	if err != nil {
		_ = store.Close() // the first error is the one that counts
		return nil, fmt.Errorf("opening the engine on %s: %w", dir, err)
	}
	return &opened{Engine: e, store: store, kind: kind, dir: dir}, nil
}

// reader returns a reader of the keys of a store that nothing changes.
func (o *opened) reader(ctx context.Context) reader {
	return func(key []byte) ([]byte, bool, error) { return o.Engine.Get(ctx, key) }
}

// keptWeeks lists the weeks. It also does so after ctx has ended, but then it does not wait for
// counts that are being rebuilt.
func (o *opened) keptWeeks(ctx context.Context) ([]engine.WeekInfo, error) {
	for {
		weeks, err := o.Engine.Weeks(context.WithoutCancel(ctx))
		if !errors.Is(err, engine.ErrRebuilding) {
			return weeks, err
		}
		if err := wait.For(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// claimFileBytes returns the size of the files with claims, in the file system.
func (o *opened) claimFileBytes() (uint64, error) { return fileBytes(o.dir, o.kind.holdsClaims) }

// restLimit is how long to wait for an idle store before the figures are read anyway.
const restLimit = time.Minute

// comeToRest waits until the store has written nothing for half a second, or the limit has passed.
func (o *opened) comeToRest(ctx context.Context) error {
	last, still := uint64(0), 0
	for end := time.Now().Add(restLimit); still < 5 && time.Now().Before(end); {
		u, err := o.store.Usage()
		if err != nil {
			return err
		}
		if still++; u.WrittenBytes+u.DiskBytes != last {
			last, still = u.WrittenBytes+u.DiskBytes, 0
		}
		if err := wait.For(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// fileBytes sums the sizes of the files below dir whose names keep selects; nil selects all. A file
// that is removed meanwhile counts as nothing.
func fileBytes(dir string, keep func(name string) bool) (uint64, error) {
	var sum uint64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (keep == nil || keep(d.Name())) {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				sum += uint64(info.Size())
			}
		}
		if os.IsNotExist(err) && path != dir {
			return nil
		}
		return err
	})
	return sum, err
}

// inPlace calls do with a directory for stores: the given one, which must be new or empty, or a
// temporary directory.
func inPlace(dir string, do func(dir string) error) error {
	if dir == "" {
		return inTemporary(do)
	}
	switch entries, err := os.ReadDir(dir); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w: give a new directory", ErrUsage, err)
	case len(entries) > 0:
		return fmt.Errorf("%w: %s is not empty: give a new directory", ErrUsage, dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of the stores: %w: give one that can be written", err)
	}
	return do(dir)
}

// inTemporary calls do with a new directory, and removes it.
func inTemporary(do func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "dedupbench-")
	if err != nil {
		return fmt.Errorf("making a temporary directory: %w: give one that can be written with --dir, or in TMPDIR", err)
	}
	defer func() {
		if rerr := os.RemoveAll(dir); rerr != nil && err == nil {
			err = fmt.Errorf("removing the temporary directory: %w", rerr)
		}
	}()
	return do(dir)
}
