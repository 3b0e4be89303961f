package storage

import (
	"bytes"
	"fmt"
	"strings"
)

// A Damage is a damaged part of a store that contains only claims. Claims in the buckets from First
// to Last may be unreadable.
type Damage struct {
	File        string // name of the damaged file
	First, Last Bucket // in key order: by scope, then by week
}

// Concerns reports whether claims of a bucket may be in the damaged part.
func (d *Damage) Concerns(b Bucket) bool {
	key := b.AppendPrefix(nil)
	return bytes.Compare(d.First.AppendPrefix(nil), key) <= 0 && bytes.Compare(key, d.Last.AppendPrefix(nil)) <= 0
}

func (d *Damage) String() string {
	switch {
	case d.First == d.Last:
		return fmt.Sprintf("%s, with claims of %s", d.File, d.First)
	case d.First.Scope == d.Last.Scope:
		return fmt.Sprintf("%s, with claims of scope %q from %s to %s", d.File, d.First.Scope, d.First.Week, d.Last.Week)
	}
	return fmt.Sprintf("%s, with claims from %s to %s", d.File, d.First, d.Last)
}

// A DamageError is an ErrDamaged that concerns only claims: a call needed a damaged part of the
// store. The store continues to work; calls that do not need this part succeed.
type DamageError struct {
	Parts []Damage
	Err   error // the cause
}

func (e *DamageError) Error() string {
	parts := make([]string, len(e.Parts))
	for i := range e.Parts {
		parts[i] = e.Parts[i].String()
	}
	cause, _, _ := strings.Cut(fmt.Sprint(e.Err), "\n")
	return fmt.Sprintf("hapax: a part of the store is damaged: %s. Events that may be there are not decided, all others are. "+
		"Drop the weeks when they are not needed any more (Retention.DropWeek), or restore a backup: %v", strings.Join(parts, "; "), cause)
}

// Unwrap returns ErrDamaged and the cause.
func (e *DamageError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

// Concerns reports whether claims of a bucket may be in one of the damaged parts.
func (e *DamageError) Concerns(b Bucket) bool {
	for i := range e.Parts {
		if e.Parts[i].Concerns(b) {
			return true
		}
	}
	return false
}
