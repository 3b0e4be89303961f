//go:build !linux

package bench

import "time"

func processTime() time.Duration { return 0 }

func threadTimeOf(do func() error) (time.Duration, error) { return 0, do() }

func residentBytes() uint64 { return 0 }
