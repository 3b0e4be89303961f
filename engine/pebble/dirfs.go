package pebble

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A dirFS is the machine's file system. It opens files in the store's directory, or in that of a
// running backup, relative to the directory and not by path, and creates them with mode 0600 or
// 0700.
type dirFS struct {
	vfs.FS // for other paths: the parents of these directories
	own    *storedir.Dir
	backup atomic.Pointer[storedir.Dir]

	mu       sync.Mutex // guards the fields below
	log      string     // newest log, which is tracked
	manifest string     // newest MANIFEST, which is tracked
}

// find returns the directory that contains the path, and the name in it. It returns nil if there is
// none.
func (h *dirFS) find(path string) (*storedir.Dir, string) {
	for _, d := range []*storedir.Dir{h.own, h.backup.Load()} {
		if d == nil {
			continue
		}
		if path == d.Path() {
			return d, "."
		}
		if name, ok := strings.CutPrefix(path, d.Path()+string(os.PathSeparator)); ok {
			return d, name
		}
	}
	return nil, ""
}

// Create implements vfs.FS.
func (h *dirFS) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	d, name := h.find(path)
	if d == nil {
		return h.FS.Create(path, category)
	}
	f, err := d.Create(name)
	if err != nil {
		return nil, err
	}
	return newOSFile(f), h.track(d, name)
}

// track tracks the newest log and the newest MANIFEST, so that the store stops if they are removed.
func (h *dirFS) track(d *storedir.Dir, name string) error {
	if d != h.own {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var newest *string
	switch {
	case isLog(name):
		newest = &h.log
	case strings.HasPrefix(name, manifestPrefix):
		newest = &h.manifest
	default:
		return nil
	}
	d.Untrack(*newest)
	*newest = name
	return d.Track(name)
}

// Link implements vfs.FS.
func (h *dirFS) Link(from, to string) error {
	d, name := h.find(from)
	other, newName := h.find(to)
	switch {
	case d == nil || other == nil:
		return h.FS.Link(from, to)
	case d != other:
		return d.LinkTo(name, other, newName)
	}
	return d.Link(name, newName)
}

// Open implements vfs.FS.
func (h *dirFS) Open(path string, options ...vfs.OpenOption) (vfs.File, error) {
	d, name := h.find(path)
	if d == nil {
		return h.FS.Open(path, options...)
	}
	return opened(d, name, os.O_RDONLY, options)
}

// OpenReadWrite implements vfs.FS.
func (h *dirFS) OpenReadWrite(path string, category vfs.DiskWriteCategory, options ...vfs.OpenOption) (vfs.File, error) {
	d, name := h.find(path)
	if d == nil {
		return h.FS.OpenReadWrite(path, category, options...)
	}
	return opened(d, name, os.O_RDWR|os.O_CREATE, options)
}

func opened(d *storedir.Dir, name string, flag int, options []vfs.OpenOption) (vfs.File, error) {
	f, err := d.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	file := newOSFile(f)
	for _, o := range options {
		o.Apply(file)
	}
	return file, nil
}

// OpenDir implements vfs.FS.
func (h *dirFS) OpenDir(path string) (vfs.File, error) {
	d, name := h.find(path)
	if d == nil {
		return h.FS.OpenDir(path)
	}
	f, err := d.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return osDir{File: newOSFile(f), file: f}, nil
}

// Remove implements vfs.FS.
func (h *dirFS) Remove(path string) error {
	d, name := h.find(path)
	if d == nil {
		return h.FS.Remove(path)
	}
	return d.Remove(name)
}

// RemoveAll implements vfs.FS.
func (h *dirFS) RemoveAll(path string) error {
	d, name := h.find(path)
	if d == nil {
		return h.FS.RemoveAll(path)
	}
	return d.RemoveAll(name)
}

// Rename implements vfs.FS.
func (h *dirFS) Rename(from, to string) error {
	d, name := h.find(from)
	other, newName := h.find(to)
	if d == nil || d != other {
		return h.FS.Rename(from, to)
	}
	return d.Rename(name, newName)
}

// ReuseForWrite implements vfs.FS.
func (h *dirFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	d, name := h.find(to)
	if d == nil {
		return h.FS.ReuseForWrite(from, to, category)
	}
	if err := h.Rename(from, to); err != nil {
		return nil, err
	}
	f, err := d.OpenFile(name, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	return newOSFile(f), h.track(d, name)
}

// MkdirAll implements vfs.FS. Pebble creates only directories inside one of ours.
func (h *dirFS) MkdirAll(path string, mode os.FileMode) error {
	d, name := h.find(path)
	switch {
	case d == nil:
		return h.FS.MkdirAll(path, mode)
	case name == ".":
		return nil
	}
	return d.Mkdir(name)
}

// List implements vfs.FS.
func (h *dirFS) List(path string) ([]string, error) {
	d, name := h.find(path)
	if d == nil {
		return h.FS.List(path)
	}
	return d.List(name)
}

// Stat implements vfs.FS.
func (h *dirFS) Stat(path string) (vfs.FileInfo, error) {
	d, name := h.find(path)
	if d == nil {
		return h.FS.Stat(path)
	}
	info, err := d.Lstat(name)
	if err != nil {
		return nil, err
	}
	return osInfo{FileInfo: info}, nil
}

// Unwrap implements vfs.FS.
func (h *dirFS) Unwrap() vfs.FS { return h.FS }
