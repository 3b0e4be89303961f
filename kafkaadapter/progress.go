package kafkaadapter

import "time"

// progress is what watchLoop knows of a partition.
type progress struct {
	next  int64     // the partition's offset
	since time.Time // when it was first seen there with something to wait for; zero if it waits for nothing
}

// A hindrance is why the record at an offset has not committed yet, as the partition's goroutine has
// last found.
type hindrance struct {
	offset int64
	reason string // of a StopError
	err    error
}
