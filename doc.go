// Package hapax is the root of Hapax, a deduplication engine for event streams that is linked into
// the consumer: no server, no external database. It holds no code; start with package engine, which
// decides who may handle an event, and engine/pebble or engine/bolt, which keep the claims.
// docs/architecture.md draws the packages, docs/guarantees.md says what they promise.
package hapax
