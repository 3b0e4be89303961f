//go:build !linux

package bloom

func mapBlocks(uint64) []block { return nil }

func unmapBlocks([]block) {}
