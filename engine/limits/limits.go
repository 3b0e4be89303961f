// Package limits lists the limits of an engine: on events, claims, keys, transactions and messages.
// They bound keys, memory and the size of a batch. Data beyond a limit is rejected with an error
// that names the limit, so that an application needs these constants only to check in advance.
package limits

import "time"

// Limits of an event, and of the data stored with its claim. Beyond them an event is an
// engine.EventError. IDBytes and AllowedSkew bound the options of these names; Open refuses Options
// beyond them.
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

// Limits of the options of these names; Open refuses Options beyond them.
const (
	MaxFilterBytes  uint64 = 1 << (30 + 8*(^uint(0)>>63)) // 256 GiB; 1 GiB on 32-bit systems
	ExpectedPerWeek        = MaxFilterBytes / 2           // whose filter has MaxFilterBytes
)

// Caps on keys and values of the application. Beyond them a call returns an engine.ArgumentError.
const (
	KeyBytes      = 4 << 10
	ValueBytes    = 4 << 20
	HoldNameBytes = 255
)

// Limits of one transaction, which bound its batch and its memory. Reaching one is engine.ErrLimit.
const (
	TxBytes     = 32 << 20 // of keys and values written, each write counted with 128 bytes more, and of data of claims; replaced ones included
	TxReadBytes = 32 << 20 // of the keys read from the store, and of the first and last key of each scan, each key and scan counted with 64 bytes more
	TxClaims    = 1 << 16
	TxScans     = 1 << 16
)

// Caps on one outgoing message. Beyond them it is an engine.ArgumentError.
const (
	MessageBytes     = 4<<20 - 64<<10 // of its fields together
	MessageIDBytes   = 255
	MessageHeaders   = 1000
	OrderingKeyBytes = 1 << 10
)

// Limits of a store. Reaching one is engine.ErrLimit.
const (
	Holds = 1 << 16

	// Names is the maximum number of distinct scopes and topics in the claims of retained weeks,
	// together. An event with one more is Failed with engine.ErrLimit.
	Names = 1 << 16

	// ScopeRetentions is the maximum number of scopes with a shorter retention than the engine's at
	// a time, dropped ones included. A scope counts until the engine's oldest week has reached the
	// scope's.
	ScopeRetentions = 1 << 16
)
