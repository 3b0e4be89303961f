// Package bridge lets package engine/driver, and no application, into package engine: Engine.Driver
// and Tx.Driver take a Key, which only packages below engine can name.
package bridge

import "errors"

// A Key opens what is behind Engine.Driver and Tx.Driver.
type Key struct{}

// ErrPartOutdated is driver.ErrPartOutdated.
var ErrPartOutdated = errors.New("hapax: the part is outdated, a part joined before it has written what it read or claimed: run it again in a new part")
