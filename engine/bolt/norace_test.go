//go:build !race

package bolt

const sparse = 1
