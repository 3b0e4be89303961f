// Package limits lists the limits of an engine: on events, claims, keys, transactions and messages.
// They bound keys, memory and the size of a batch. Data beyond a limit is rejected with an error
// that states the limit, so an application needs these constants only to check in advance.
package limits

import "time"

// Limits of an event, and of the data stored with its claim. An event beyond them is rejected with
// an engine.EventError. IDBytes and AllowedSkew bound the options MaxIDBytes and AllowedSkew; Open
// refuses larger values.
const (
	ScopeBytes       = 255
	IDBytes          = 16 << 10 // the maximum of Options.MaxIDBytes
	TopicBytes       = 255
	FingerprintBytes = 64
	DataBytes        = 256 << 10                 // of the data of a claim
	Lease            = 24 * time.Hour            // Event.Lease
	ArrivalWindow    = 53 * 7 * 24 * time.Hour   // Event.Window of an event without a time
	AllowedSkew      = 10 * 365 * 24 * time.Hour // Options.AllowedSkew
)

// Limits of the options with these names; Open refuses larger values.
const (
	MaxFilterBytes  uint64 = 1 << (30 + 8*(^uint(0)>>63)) // 256 GiB; 1 GiB on 32-bit systems
	ExpectedPerWeek        = MaxFilterBytes / 2           // a filter of this size has MaxFilterBytes
)

// Limits of application keys and values. Beyond them, a call returns an engine.ArgumentError.
const (
	KeyBytes      = 4 << 10
	ValueBytes    = 4 << 20
	HoldNameBytes = 255
)

// Limits of one transaction, which bound its batch and its memory. Beyond them, a call returns
// engine.ErrLimit.
const (
	TxBytes     = 32 << 20 // size of written keys and values, plus 128 bytes for each write, and of data of claims, including replaced ones
	TxReadBytes = 32 << 20 // size of keys read from the store and of the first and last key of each scan, plus 64 bytes for each key and scan
	TxClaims    = 1 << 16
	TxScans     = 1 << 16
)

// Limits of one outgoing message. A message beyond them is rejected with an engine.ArgumentError.
const (
	MessageBytes     = 4<<20 - 64<<10 // size of all fields together
	MessageIDBytes   = 255
	MessageHeaders   = 1000
	OrderingKeyBytes = 1 << 10
)

// Limits of a store. Beyond them, a call returns engine.ErrLimit.
const (
	Holds = 1 << 16

	// Names is the maximum number of distinct scopes and topics in the claims of retained weeks. An
	// event with a further one is Failed with engine.ErrLimit.
	Names = 1 << 16

	// ScopeRetentions is the maximum number of scopes that retain fewer weeks than the engine at a
	// time, including dropped scopes. A scope is counted until the engine's oldest week has reached
	// the scope's.
	ScopeRetentions = 1 << 16
)
