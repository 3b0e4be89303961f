// Package driver has the methods of engines and transactions that adapters need and applications do
// not: turns of transactions that meet, parts that run in parallel, events that are prepared before
// they are claimed, and what a package of this module owns in an engine. Package kafkaadapter is
// made with it.
//
// Lanes, parts and prepared events may be used by every program that is an adapter of its own. Key
// spaces and ownerships are for the packages of this module.
package driver

import "github.com/hapax-dev/hapax/engine/internal/bridge"

var key = bridge.NewKey()
