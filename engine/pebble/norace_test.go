//go:build !race

package pebble

const sparse = 1
