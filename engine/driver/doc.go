// Package driver has the functions on engines and transactions that adapters need and applications
// do not: turns of conflicting transactions, parts of a transaction that run in parallel,
// preparation of events before they are claimed, and ownership of data by a package of this module.
// Package kafkaadapter uses it.
//
// Any program that is itself an adapter may use lanes, parts and prepared events. Key spaces and
// ownerships are for the packages of this module.
package driver

import "github.com/hapax-dev/hapax/engine/internal/bridge"

var key = bridge.NewKey()
