//go:build race

package pebble

// The race detector makes everything ten times as slow; the sweeps take fewer samples then.
const sparse = 8
