package storedir

import (
	"fmt"
	"os"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Track makes Check verify that the name still refers to the file, until Remove removes the file.
// Rename also updates the name of a tracked file.
func (d *Dir) Track(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := d.root.Lstat(name)
	if err != nil {
		return err
	}
	d.names[name] = info
	return nil
}

// Untrack ends Track.
func (d *Dir) Untrack(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
}

// Check returns storage.ErrMoved if the name of the directory or of a tracked file no longer refers
// to it. After that, every call returns the error. OpenFile, Create, Rename and Remove call Check
// before they change anything.
func (d *Dir) Check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.check()
}

// Recheck is Check, but does nothing if the last check was less than 10 ms ago. It is called before
// every sync; a check takes some microseconds.
func (d *Dir) Recheck() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moved == nil && time.Since(d.checked) < recheckAfter {
		return nil
	}
	return d.check()
}

const recheckAfter = 10 * time.Millisecond

// check is Check for a caller that holds mu.
func (d *Dir) check() error {
	if d.moved != nil {
		return d.moved
	}
	if info, err := os.Lstat(d.path); err != nil || !os.SameFile(info, d.own) {
		d.moved = displaced(d.path, err)
		return d.moved
	}
	for name, was := range d.names {
		if info, err := d.root.Lstat(name); err != nil || !os.SameFile(info, was) {
			d.moved = displaced(name+" in "+d.path, err)
			return d.moved
		}
	}
	d.checked = time.Now()
	return nil
}

func displaced(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %s is not there: %w", storage.ErrMoved, what, err)
	}
	return fmt.Errorf("%w: there is another %s", storage.ErrMoved, what)
}

// changeable returns an error if d must not be changed.
func changeable(d *Dir) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mayChange()
}

// mayChange is changeable for a caller that holds mu.
func (d *Dir) mayChange() error {
	if d.readOnly {
		return errReadOnly
	}
	return d.check()
}

// Watch checks once a second until d is closed, and calls moved once when a check fails. moved must
// not call Close.
func (d *Dir) Watch(moved func(error)) {
	d.watch.begin(func() bool {
		err := d.Check()
		if err != nil {
			moved(err)
		}
		return err == nil
	})
}

// A watch calls a function once a second.
type watch struct{ stop, done chan struct{} }

// WatchInterval is the time between two checks of Watch.
const WatchInterval = time.Second

func (w *watch) begin(check func() (goOn bool)) {
	w.stop, w.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.done)
		tick := time.NewTicker(WatchInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if !check() {
					return
				}
			case <-w.stop:
				return
			}
		}
	}()
}

func (w *watch) end() {
	if w.stop == nil {
		return
	}
	close(w.stop)
	<-w.done
	w.stop = nil
}

// renamed updates the name of a tracked file. The caller holds mu.
func (d *Dir) renamed(from, to string) error {
	_, wasFrom := d.names[from]
	_, wasTo := d.names[to]
	delete(d.names, from)
	if !wasFrom && !wasTo {
		return nil
	}
	info, err := d.root.Lstat(to)
	if err == nil {
		d.names[to] = info
	}
	return err
}
