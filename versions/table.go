package versions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// Options configure a Table. The zero value of each field has a stated, safe default.
type Options struct {
	// KeepDeletions is how long after its Delete a deletion is kept, by Clock. After Prune has
	// removed it, a Put of an older version that arrives even later is visible. 0: deletions are
	// kept forever. See Prune for clocks that are wrong.
	KeepDeletions time.Duration

	// Fill completes a partial row. It returns newer with each value that newer lacks and older
	// has, or newer itself if older adds nothing, and whether values are still missing. It is
	// called with the older versions of the row, the newest first, until nothing is missing. It
	// must depend only on its arguments, must not change them, and may be called concurrently. nil:
	// a partial row is rejected.
	Fill func(newer, older []byte) (filled []byte, partial bool)

	// PruneEvery is the time between two passes of Run, or between your own calls of Prune.
	// 0 = DefaultPruneEvery.
	PruneEvery time.Duration

	// Logger receives messages about the passes of Run. nil = slog.Default().
	Logger *slog.Logger

	// Clock returns the time of deletions. nil = time.Now.
	Clock func() time.Time
}

// The defaults of Options, and limits.
const (
	DefaultPruneEvery = time.Hour

	MaxTableBytes   = 64 // of the name of a table
	MaxTenantBytes  = 255
	MaxKeyBytes     = 1 << 10
	MaxPayloadBytes = limits.ValueBytes - 16
)

// A Table is a set of rows of which the newest version wins. Any number of Tables with the same
// engine and name are the same table. Its methods are safe for concurrent use.
type Table struct {
	eng    *engine.Engine
	opt    Options
	name   []byte
	prefix []byte // of the keys of its rows
}

var (
	rowSpace = keyspace.New("versions") // see key.go
	// name of a table -> time of the last commit that has changed it
	appliedSpace = keyspace.New("versions/applied")
)

// New returns the table with a name, which is 1 to MaxTableBytes bytes. It does no I/O; a table
// that was never written is empty.
func New(e *engine.Engine, name string, o Options) (*Table, error) {
	switch {
	case e == nil:
		return nil, errors.New("hapax: versions: the engine is nil: open one with engine.Open, and check its error")
	case name == "" || len(name) > MaxTableBytes:
		return nil, &RowError{"table name", fmt.Sprintf("has %d bytes: give 1 to %d", len(name), MaxTableBytes)}
	case o.KeepDeletions < 0:
		return nil, fmt.Errorf("hapax: versions: Options.KeepDeletions is %v: give a positive time, or 0 to keep them forever", o.KeepDeletions)
	case o.PruneEvery < 0:
		return nil, fmt.Errorf("hapax: versions: Options.PruneEvery is %v: give a positive time", o.PruneEvery)
	}
	if o.PruneEvery == 0 {
		o.PruneEvery = DefaultPruneEvery
	}
	o.Logger = untrusted.Logger(o.Logger)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Table{e, o, []byte(name), appendPart(nil, name)}, nil
}

// A Row is one version of a row.
type Row struct {
	// Tenant and Key name the row: 1 to MaxTenantBytes and 1 to MaxKeyBytes bytes. A program
	// without tenants uses one name for all rows.
	Tenant string
	Key    []byte

	// Version orders the versions of the row: the greatest is the newest. It comes from a source that
	// promises such an order, or is the offset of the record: see the package documentation.
	Version uint64

	// Offset orders changes with equal Versions: the position of the change in its partition of the
	// source, such as the record's offset, 0 or greater. Leave it 0 if each change of a row has
	// another Version.
	Offset int64

	// Time is when the source made the change, to the microsecond. Selections by time use it. Zero:
	// no time. The time of a deletion is not stored.
	Time time.Time

	// Payload is the content, at most MaxPayloadBytes. A deletion has none.
	Payload []byte

	// Deleted says that the version is a deletion.
	Deleted bool

	// Partial says that Payload lacks values. The row takes them from its newest older version that
	// has them, even if that arrives later (Options.Fill). In a result it says that no such version
	// has arrived.
	Partial bool
}

// A RowError says which part of a row, a table or a selection is rejected, and why. Nothing was
// written.
type RowError struct {
	What   string // "tenant", "key", ...
	Reason string
}

func (e *RowError) Error() string { return fmt.Sprintf("hapax: versions: %s %s", e.What, e.Reason) }

func checkName(tenant string, key []byte) error {
	switch {
	case tenant == "" || len(tenant) > MaxTenantBytes:
		return &RowError{"tenant", fmt.Sprintf("has %d bytes: give 1 to %d", len(tenant), MaxTenantBytes)}
	case len(key) == 0 || len(key) > MaxKeyBytes:
		return &RowError{"key", fmt.Sprintf("has %d bytes: give 1 to %d", len(key), MaxKeyBytes)}
	}
	return nil
}

func (r *Row) check(o *Options) error {
	if err := checkName(r.Tenant, r.Key); err != nil {
		return err
	}
	switch {
	case len(r.Payload) > MaxPayloadBytes:
		return &RowError{"payload", fmt.Sprintf("has %d bytes, the cap is %d: store it elsewhere and put a reference", len(r.Payload), MaxPayloadBytes)}
	case r.Deleted && len(r.Payload) > 0:
		return &RowError{"deletion", "has a payload: leave it empty"}
	case r.Deleted && r.Partial:
		return &RowError{"deletion", "is partial: a deletion has no values"}
	case r.Partial && o.Fill == nil:
		return &RowError{"payload", "is partial, and the table does not know how to complete it: set Options.Fill"}
	case r.Offset < 0:
		return &RowError{"offset", fmt.Sprintf("is %d: give 0 or more", r.Offset)}
	case !r.Time.IsZero() && !isStorable(r.Time):
		return &RowError{"time", "is before the year 1 or after the year 9999"}
	}
	return nil
}

// isStorable reports whether a time is within the range of microseconds.
func isStorable(t time.Time) bool { y := t.UTC().Year(); return y >= 1 && y <= 9999 }

// LastApplied returns the time of the last durable commit that has put rows into the table, by the
// clock of the engine: a read that begins now contains every change that was applied until then. It
// is zero for a table that was never written.
func (t *Table) LastApplied(ctx context.Context) (time.Time, error) {
	value, found, err := driver.In(t.eng, appliedSpace).Get(ctx, t.name)
	if err != nil || !found {
		return time.Time{}, err
	}
	micros, err := engine.DecodeInt64(value)
	if err != nil {
		return time.Time{}, damaged("time of the last change of table %q: %x", t.name, value)
	}
	return time.UnixMicro(micros).UTC(), nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: versions: %s", storage.ErrDamaged, fmt.Sprintf(format, args...))
}
