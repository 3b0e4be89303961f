// Package keyspace names the key spaces of an engine that belong to packages of this module. Keys
// of a space cannot collide with application keys or keys of other spaces, and a scan of one space
// never returns keys of another.
package keyspace

import "strings"

// A Space is a key space. Only packages of this module can make one other than the zero value,
// which is not a space.
type Space struct {
	name     string
	reserved *reserved // nil if the keys are not among the application's
}

// New returns the space with the given name: 1 to 64 characters a-z, 0-9, '-' and '/'. The name is
// part of the format on disk. New panics on any other name, so call it in the declaration of a
// package variable.
func New(name string) Space {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-/"
	if name == "" || len(name) > 64 || strings.Trim(name, allowed) != "" {
		panic("hapax: key space name " + name + ": use 1 to 64 characters a-z, 0-9, - and /")
	}
	return Space{name: name}
}

// Name returns the name, "" for the zero value.
func (s Space) Name() string { return s.name }
