// Package bridge gives package engine/driver, but not applications, access to package engine:
// Engine.Driver and Tx.Driver take a Key, which only packages below engine can make.
package bridge

import "errors"

// A Key is required by Engine.Driver and Tx.Driver.
type Key struct{ made *bool }

var made = new(bool)

// NewKey makes a key.
func NewKey() Key { return Key{made} }

// Check panics if NewKey has not made the key: a program that cannot name the type can still get
// its zero value through type inference.
func (k Key) Check() {
	if k.made == nil {
		panic("hapax: Driver is for package engine/driver: use that package")
	}
}

// ErrPartOutdated is driver.ErrPartOutdated.
var ErrPartOutdated = errors.New("hapax: the part is outdated, a part joined before it has written what it read or claimed: run it again in a new part")
