package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/wait"
)

// files are the files of a store that no process has open.
type files struct {
	dir string
	yes bool // changes are permitted
}

// kind returns the kind of the store. It returns an error if there is none, because opening would make
// one.
func (f *files) kind() (sidecar.Kind, error) {
	kind, err := sidecar.ReadKind(sidecar.OS{}, f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no store in %s: %w", f.dir, err)
	}
	if err == nil && kind != sidecar.Pebble && kind != sidecar.Bolt {
		err = fmt.Errorf("%s has a %s store, of which the log is the truth: %w", f.dir, kind.Name, storage.ErrForeign)
	}
	return kind, err
}

// read calls fn with a reader, which changes nothing.
func (f *files) read(fn func(*engine.Reader) error) error {
	kind, err := f.kind()
	if err != nil {
		return err
	}
	var store storage.Reader
	if kind == sidecar.Bolt {
		store, err = bolt.OpenReader(f.dir, bolt.Options{})
	} else {
		store, err = pebble.OpenReader(f.dir, pebble.Options{})
	}
	if err != nil {
		return err
	}
	r, err := engine.OpenReader(store)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(fn(r), r.Close())
}

// open opens the store for changes.
func (f *files) open() (storage.Store, error) {
	kind, err := f.kind()
	if err != nil {
		return nil, err
	}
	if kind == sidecar.Bolt {
		return asStore(bolt.Open(f.dir, bolt.Options{Logger: slog.New(slog.DiscardHandler)}))
	}
	return asStore(pebble.Open(f.dir, pebble.Options{Logger: slog.New(slog.DiscardHandler)}))
}

func asStore[S storage.Store](s S, err error) (storage.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// change calls fn with an engine. No week expires: how many weeks are retained is an option of the
// application.
func (f *files) change(fn func(*engine.Engine) error) error {
	store, err := f.open()
	if err != nil {
		return err
	}
	e, err := engine.Open(store, engine.Options{RetentionWeeks: engine.KeepAll, Nightly: engine.Nightly{Off: true}})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(fn(e), e.Close())
}

// rebuilt repeats a call until the filters are there.
func rebuilt[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if !errors.Is(err, engine.ErrRebuilding) || errors.As(err, new(*storage.DamageError)) || wait.For(ctx, rebuildRetry) != nil {
			return v, err
		}
	}
}

const rebuildRetry = 50 * time.Millisecond
