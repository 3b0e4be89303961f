package scan

import "time"

// A Report has the result of a scan.
type Report struct {
	Topic      string      `json:"topic"`
	Since      time.Time   `json:"since"`
	Partitions []Partition `json:"partitions"`

	Records     int64 `json:"records"`      // that were read
	Events      int64 `json:"events"`       // different ids
	Copies      int64 `json:"copies"`       // records whose id and value were read before
	Crossing    int64 `json:"crossing"`     // of these, in another partition than the first one that was read
	Mismatches  int64 `json:"mismatches"`   // records whose id was read before with another value
	WithoutID   int64 `json:"without_id"`   // records that only their position identifies
	WithoutTime int64 `json:"without_time"` // records with an id and no time
	Unreadable  int64 `json:"unreadable"`   // records whose id cannot be read or is not valid

	// IDRules and TimeRules count the records with an id by the rule that found their id or time.
	IDRules   map[string]int64 `json:"id_rules"`
	TimeRules map[string]int64 `json:"time_rules"`

	// Distances are those of copies from the first record with their id that was read.
	Distances Distances `json:"distances"`

	// StoreBytes is the size of the temporary store on disk.
	StoreBytes uint64 `json:"store_bytes"`
	// Incomplete says why the topic was not read to its end, empty if it was.
	Incomplete string `json:"incomplete,omitempty"`
}

// A Partition says which offsets were read: those from From and below Next. End is where the
// partition ended at the start of the scan.
type Partition struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"`
	Next      int64 `json:"next"`
	End       int64 `json:"end"`
}

// Distances are figures of the times between the timestamps of a copy and of the first record with
// its id, whichever is earlier. They are rounded up by at most 1.6 percent; Max is exact.
type Distances struct {
	Copies int64         `json:"copies"` // with timestamps
	P50    time.Duration `json:"p50_ns"`
	P99    time.Duration `json:"p99_ns"`
	// Window is the window that covers 99.9 percent of the copies.
	Window time.Duration `json:"window_ns"`
	Max    time.Duration `json:"max_ns"`
}

func newReport(o Options, partitions []Partition) *Report {
	return &Report{Topic: o.Topic, Since: o.Since, Partitions: partitions, IDRules: map[string]int64{}, TimeRules: map[string]int64{}}
}
