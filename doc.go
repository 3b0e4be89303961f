// Package hapax is the root of Hapax, a deduplication engine for event streams that runs inside the
// consumer, without a server or an external database. This package contains no code. Start with
// package engine, which decides which caller may handle an event, and with engine/pebble or
// engine/bolt, which store the claims. docs/architecture.md shows the packages, and
// docs/guarantees.md states their guarantees.
package hapax
