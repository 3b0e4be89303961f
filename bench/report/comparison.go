package report

// A Comparison is the report of a comparison with peers, which bench/peers prints as JSON.
type Comparison struct {
	// Records is the number of records that each contender consumed, or of ids that it claimed, in
	// each round, repeats included.
	Records int     `json:"records"`
	Rounds  int     `json:"rounds"`
	Rows    []Row   `json:"rows"`
	Ratios  []Ratio `json:"ratios"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
	About   About   `json:"about"`
}

// A Row has the results of one contender.
type Row struct {
	Name string `json:"name"`
	// Work is the work for each new event, or the number of ids at scale; "" if all rows have the
	// same.
	Work string `json:"work,omitempty"`
	// Setting is the fastest of the tried settings.
	Setting string `json:"setting,omitempty"`
	// Durability says which data is durable when a call returns, Settings how the contender is
	// configured.
	Durability string `json:"durability"`
	Settings   string `json:"settings"`

	// Records is the number of records of this row, if it can be less than that of the comparison.
	Records int    `json:"records,omitempty"`
	PerS    Spread `json:"per_s"`
	// CPUSeconds is the processor time of the consumer and its server, without Kafka, in the round
	// with the median rate.
	CPUSeconds float64 `json:"cpu_s"`
	// Wrong describes the errors at the end of a round, "" if there were none.
	Wrong string `json:"wrong,omitempty"`
	// Killed and KilledServer describe the errors after the process was killed half-way, and after
	// it was killed together with its server: "right" if there were none, "" if that was not tried.
	Killed       string `json:"killed,omitempty"`
	KilledServer string `json:"killed_server,omitempty"`
	// Tried are the rates of the settings that were tried on a part of the records.
	Tried []Trial `json:"tried,omitempty"`
	// Samples come from the round with the median rate.
	Samples []Sample `json:"samples,omitempty"`
}

// A Spread is the median, the minimum and the maximum of the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// A Trial is the rate with one setting.
type Trial struct {
	Setting string  `json:"setting"`
	PerS    float64 `json:"per_s"`
}

// A Sample is taken while claims are stored.
type Sample struct {
	Stored   uint64  `json:"stored"` // so far
	PerS     float64 `json:"per_s"`
	Disk     uint64  `json:"disk_bytes"`
	Resident uint64  `json:"resident_bytes,omitempty"`
}

// A Ratio is the rate of one contender over that of another, for the same work: the median of the
// ratios of the rounds.
type Ratio struct {
	Of    string  `json:"of"`
	Over  string  `json:"over"`
	Work  string  `json:"work,omitempty"`
	Ratio float64 `json:"ratio"`
}
