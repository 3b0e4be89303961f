package replica_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A hookedLog calls before ahead of each append, if that is set, and changes the answers.
type hookedLog struct {
	*replica.Memory
	before  func(ctx context.Context, n int) error // n counts the appends, from 1
	answer  func(n int, ack replica.Ack) replica.Ack
	appends int
}

func (l *hookedLog) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	l.appends++
	n := l.appends
	if l.before != nil {
		if err := l.before(ctx, n); err != nil {
			return replica.Ack{}, err
		}
	}
	ack, err := l.Memory.Append(ctx, record)
	if err == nil && l.answer != nil {
		ack = l.answer(n, ack)
	}
	return ack, err
}

// A place is a directory for a copy, on a disk of its own.
func place() *memCopies { return &memCopies{disk: storetest.NewDisk(), dir: "copy"} }

func quiet() replica.Options {
	return replica.Options{PartBytes: 60, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func open(t *testing.T, log replica.Log, copies replica.Copies) *replica.Store {
	t.Helper()
	s, err := replica.Open(context.Background(), log, copies, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func refused(t *testing.T, log replica.Log, copies replica.Copies, want error) {
	t.Helper()
	s, err := replica.Open(context.Background(), log, copies, quiet())
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, want) {
		t.Errorf("Open: %v, want %v", err, want)
	}
}

// put puts the key of a number.
func put(s storage.Store, n int) error {
	seq := s.LastSeq() + 1
	if c, ok := s.(*counted); ok {
		c.applied++
		seq = c.LastSeq() + c.applied
	}
	wait, err := s.Apply(&storage.Batch{Seq: seq, State: []storage.StateWrite{{Key: fmt.Append(nil, "h", n), Value: fmt.Append(nil, "value ", n)}}})
	if err == nil {
		err = wait()
	}
	return err
}

// A counted store counts the batches for put.
type counted struct {
	*replica.Store
	applied uint64
}

func mustPut(t *testing.T, s storage.Store, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		if err := put(s, n); err != nil {
			t.Fatalf("batch %d: %v", n, err)
		}
	}
}

// has reports which of the keys from 1 to 9 a store has, as digits.
func has(t *testing.T, s storage.Store) (digits string) {
	t.Helper()
	for n := 1; n < 10; n++ {
		if _, found, err := s.State(fmt.Append(nil, "h", n)); err != nil {
			t.Fatal(err)
		} else if found {
			digits += fmt.Sprint(n)
		}
	}
	return digits
}

func wantKeys(t *testing.T, s storage.Store, want string) {
	t.Helper()
	if got := has(t, s); got != want {
		t.Errorf("it has the keys %q, want %q", got, want)
	}
}

func TestAnotherOpenFencesTheOwner(t *testing.T) {
	log := &replica.Memory{}
	first := &counted{Store: open(t, log, place())}
	mustPut(t, first, 1, 2)
	second := &counted{Store: open(t, log, place())}
	for range 2 {
		if err := put(first, 3); !errors.Is(err, replica.ErrFenced) {
			t.Errorf("a batch of the former owner: %v", err)
		}
	}
	wantKeys(t, first, "12")
	mustPut(t, second, 4, 4)
	wantKeys(t, second, "124")
	wantKeys(t, open(t, log, place()), "124")
	if first.Identity() != second.Identity() {
		t.Error("the identities differ")
	}
}

// A batch that the former owner appends while another reads the log is in the other's copy.
func TestTakeOverReadsToItsOwnOpen(t *testing.T) {
	log := &replica.Memory{}
	first := &counted{Store: open(t, log, place())}
	mustPut(t, first, 1, 1)
	late := &hookedLog{Memory: log, before: func(_ context.Context, n int) error {
		if n == 1 {
			mustPut(t, first, 2, 2)
		}
		return nil
	}}
	wantKeys(t, open(t, late, place()), "12")
	withoutOffset := &hookedLog{Memory: log, answer: func(_ int, ack replica.Ack) replica.Ack { ack.Offset = -1; return ack }}
	wantKeys(t, open(t, withoutOffset, place()), "12")
}

// Of two members that create the log at once, the second adopts the identity of the first. So does one
// that another member has overtaken.
func TestAnOvertakenOpenIsRepeated(t *testing.T) {
	log := &replica.Memory{}
	var first *counted
	late := &hookedLog{Memory: log, before: func(_ context.Context, n int) error {
		if n == 1 {
			first = &counted{Store: open(t, log, place())}
			mustPut(t, first, 1, 1)
		}
		return nil
	}}
	second := open(t, late, place())
	if late.appends != 2 || second.Identity() != first.Identity() {
		t.Errorf("%d appends, identities %v and %v", late.appends, first.Identity(), second.Identity())
	}
	wantKeys(t, second, "1")
	if err := put(first, 2); !errors.Is(err, replica.ErrFenced) {
		t.Error(err)
	}
}

// After an append of unknown outcome nothing more is appended, and the copy does not have the batch.
func TestUnknownOutcomeEndsTheOwnership(t *testing.T) {
	cause := errors.New("the broker is away")
	log := &hookedLog{Memory: &replica.Memory{}}
	s := &counted{Store: open(t, log, place())}
	mustPut(t, s, 1, 1)
	log.before = func(context.Context, int) error { return cause }
	if err := put(s, 2); !errors.Is(err, replica.ErrUnknownOutcome) || !errors.Is(err, cause) {
		t.Error(err)
	}
	appends := log.appends
	log.before = nil
	if err := put(s, 3); !errors.Is(err, replica.ErrUnknownOutcome) || log.appends != appends {
		t.Errorf("%v; %d appends after the failed one", err, log.appends-appends)
	}
	wantKeys(t, s, "1")
}

// While the broker is away, Revoke ends an Apply that waits.
func TestRevokeEndsTheWait(t *testing.T) {
	log := &hookedLog{Memory: &replica.Memory{}}
	s := &counted{Store: open(t, log, place())}
	waiting := make(chan struct{})
	log.before = func(ctx context.Context, _ int) error {
		close(waiting)
		<-ctx.Done()
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() { done <- put(s, 1) }()
	<-waiting
	s.Revoke()
	if err := <-done; !errors.Is(err, replica.ErrRevoked) || !errors.Is(err, replica.ErrUnknownOutcome) {
		t.Error(err)
	}
	wantKeys(t, s, "")
}

// An owner whose answers have no offset, or a later one, reads back.
func TestAnswersAreReadBack(t *testing.T) {
	log := &hookedLog{Memory: &replica.Memory{}}
	s := &counted{Store: open(t, log, place())}
	mustPut(t, s, 1, 1)
	log.answer = func(_ int, ack replica.Ack) replica.Ack { ack.Offset = -1; return ack }
	mustPut(t, s, 2, 2)
	log.answer = nil
	log.before = func(context.Context, int) error {
		_, err := log.Memory.Append(context.Background(), []byte("foreign"))
		return err
	}
	mustPut(t, s, 3, 5)
	log.before = nil
	log.answer = func(_ int, ack replica.Ack) replica.Ack { ack.Epoch++; return ack }
	mustPut(t, s, 6, 6)
	wantKeys(t, open(t, log.Memory, place()), "123456")
}

// A void part of an owner that was fenced between two parts leaves nothing.
func TestPartsOfAFencedOwnerAreVoid(t *testing.T) {
	log := &hookedLog{Memory: &replica.Memory{}}
	first := &counted{Store: open(t, log, place())}
	mustPut(t, first, 1, 1)
	var second *counted
	begun := log.appends
	log.before = func(_ context.Context, n int) error {
		if n == begun+2 {
			second = &counted{Store: open(t, log.Memory, place())}
		}
		return nil
	}
	wait, err := first.Apply(&storage.Batch{Seq: 2, State: []storage.StateWrite{{Key: []byte("h2"), Value: bytes.Repeat([]byte("long"), 60)}}})
	if wait != nil || !errors.Is(err, replica.ErrFenced) {
		t.Error(err)
	}
	mustPut(t, second, 3, 3)
	wantKeys(t, open(t, log.Memory, place()), "13")
	wantKeys(t, first, "1")
}

// The log loses what it has acknowledged: the owner notices it with its next batch.
func TestOwnerNoticesALossOfTheLog(t *testing.T) {
	for _, c := range []struct {
		what   string
		from   int64 // the first record that is lost; batch n is at offset n
		refill int   // foreign records after that
	}{
		{"a lower offset is answered", 2, 0},
		{"the expected offset is answered", 2, 2},
		{"a higher offset is answered", 2, 4},
		{"the last record only", 3, 1},
		{"everything", 0, 4},
	} {
		log := &replica.Memory{}
		s := &counted{Store: open(t, log, place())}
		mustPut(t, s, 1, 3)
		log.Truncate(c.from)
		fill(t, log, c.refill)
		if err := put(s, 4); !errors.Is(err, replica.ErrChangelogLost) {
			t.Errorf("%s: %v", c.what, err)
		}
		wantKeys(t, s, "123")
	}
}

// The leader changes and nothing is lost: the owner goes on.
func TestOwnerGoesOnWithANewLeader(t *testing.T) {
	log := &replica.Memory{}
	s := &counted{Store: open(t, log, place())}
	mustPut(t, s, 1, 3)
	log.Truncate(1 << 20)
	mustPut(t, s, 4, 5)
	wantKeys(t, open(t, log, place()), "12345")
}

func fill(t *testing.T, log *replica.Memory, n int) {
	t.Helper()
	for range n {
		if _, err := log.Append(context.Background(), []byte("foreign")); err != nil {
			t.Fatal(err)
		}
	}
}

// written returns a log with three batches, and a closed copy of it.
func written(t *testing.T) (*replica.Memory, *memCopies) {
	t.Helper()
	log, copies := &replica.Memory{}, place()
	s := &counted{Store: open(t, log, copies)}
	mustPut(t, s, 1, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return log, copies
}

func TestCopyThatTheLogDoesNotHaveIsALoss(t *testing.T) {
	for _, refill := range []int{0, 1, 2, 5} {
		log, copies := written(t)
		log.Truncate(2)
		fill(t, log, refill)
		refused(t, log, copies, replica.ErrChangelogLost)
		if copies.gone > 0 {
			t.Error("the copy was removed")
		}
	}
	// while the log is being taken over
	for _, refill := range []int{0, 1, 2, 5} {
		log, copies := written(t)
		late := &hookedLog{Memory: log, before: func(_ context.Context, n int) error {
			if n == 1 {
				log.Truncate(2)
				fill(t, log, refill)
			}
			return nil
		}}
		refused(t, late, copies, replica.ErrChangelogLost)
	}
}

func TestCopyThatCannotBeContinuedIsRestored(t *testing.T) {
	for what, spoil := range map[string]func(log *replica.Memory, c *memCopies) replica.Copies{
		"gone":    func(_ *replica.Memory, c *memCopies) replica.Copies { _ = c.Remove(); c.gone = 0; return c },
		"damaged": func(_ *replica.Memory, c *memCopies) replica.Copies { return &damagedOnce{memCopies: c} },
		"of another log": func(_ *replica.Memory, c *memCopies) replica.Copies {
			other, theirs := written(t)
			other.Recreate()
			*c = *theirs
			return c
		},
	} {
		log, copies := written(t)
		s, err := replica.Open(context.Background(), log, spoil(log, copies), quiet())
		if err != nil {
			if what == "of another log" && errors.Is(err, replica.ErrChangelogLost) {
				t.Errorf("%s: taken for a loss", what)
			}
			t.Fatalf("%s: %v", what, err)
		}
		wantKeys(t, s, "123")
		if r := s.Restore(); r.Batches != 3 || (r.Discarded == nil) != (what == "gone") {
			t.Errorf("%s: %+v", what, r)
		}
		_ = s.Close()
	}
}

type damagedOnce struct {
	*memCopies
	opened bool
}

func (d *damagedOnce) Open() (storage.Store, error) {
	if !d.opened {
		d.opened = true
		return nil, storage.ErrDamaged
	}
	return d.memCopies.Open()
}

// Damage that an engine meets in a copy is gone with the next Open.
func TestDamagedCopyIsRemovedAtClose(t *testing.T) {
	log, copies := written(t)
	s := open(t, log, copies)
	copies.last.FailAt(storetest.OpState, 1, storage.ErrDamaged)
	if _, _, err := s.State([]byte("h1")); !errors.Is(err, storage.ErrDamaged) {
		t.Error(err)
	}
	if err := s.Close(); err != nil || copies.gone != 1 {
		t.Errorf("%v, removed %d times", err, copies.gone)
	}
	wantKeys(t, open(t, log, copies), "123")
}

func TestRecreatedTopicDoesNotContinueTheCopy(t *testing.T) {
	log, copies := written(t)
	log.Recreate()
	s := open(t, log, copies)
	wantKeys(t, s, "")
	if s.Restore().Discarded == nil || copies.gone != 1 {
		t.Errorf("%+v", s.Restore())
	}
}

func TestTrimmedLogIsDamaged(t *testing.T) {
	for _, below := range []int64{1, 2, 3} {
		log, copies := written(t)
		log.Trim(below)
		refused(t, log, place(), replica.ErrChangelogDamaged)
		s := open(t, log, copies) // the copy is at the last record
		wantKeys(t, s, "123")
		_ = s.Close()
		appended := len(records(log))
		refused(t, log, place(), replica.ErrChangelogDamaged)
		if len(records(log)) != appended {
			t.Error("a record was appended to a damaged log")
		}
	}
	// a copy before the log's start stays: the log cannot restore it
	log, copies := written(t)
	s := &counted{Store: open(t, log, place())}
	mustPut(t, s, 4, 5)
	log.Trim(5)
	refused(t, log, copies, replica.ErrChangelogDamaged)
	if copies.gone > 0 {
		t.Errorf("the copy was removed %d times", copies.gone)
	}
}

func TestNewerRecordIsRefused(t *testing.T) {
	log, copies := written(t)
	newer := append([]byte{}, records(log)[1]...)
	newer[5] = 2
	if _, err := log.Append(context.Background(), newer); err != nil {
		t.Fatal(err)
	}
	refused(t, log, copies, storage.ErrNewerFormat)
	refused(t, log, place(), storage.ErrNewerFormat)
	if err := replica.Follow(context.Background(), log, place(), quiet()); !errors.Is(err, storage.ErrNewerFormat) {
		t.Errorf("Follow: %v", err)
	}
}

// A store that is no copy stays as it is.
func TestStoreOfItsOwnIsNotReplaced(t *testing.T) {
	log, _ := written(t)
	copies := place()
	m, err := copies.Create(storage.NewIdentity())
	if err != nil {
		t.Fatal(err)
	}
	wait, err := m.Apply(&storage.Batch{Seq: 1, State: []storage.StateWrite{{Key: []byte("h9"), Value: []byte{}}}})
	if err != nil || wait() != nil || m.Close() != nil {
		t.Fatal(err)
	}
	refused(t, log, copies, storage.ErrForeign)
	if copies.gone > 0 {
		t.Error("it was removed")
	}
}

// A copy that has lost any number of its newest batches is continued where it ends.
func TestCutCopyIsContinued(t *testing.T) {
	for kept := range 6 {
		log, copies := written(t)
		s := open(t, log, copies)
		for n := 4; n < 9; n++ { // their waits are not called
			if _, err := s.Apply(&storage.Batch{Seq: uint64(n), State: []storage.StateWrite{{Key: fmt.Append(nil, "h", n), Value: []byte{}}}}); err != nil {
				t.Fatal(err)
			}
		}
		clone := copies.last.CrashClone(kept)
		if err := clone.Close(); err != nil {
			t.Fatal(err)
		}
		cut := open(t, log, &memCopies{disk: clone.Disk(), dir: "copy", made: true})
		wantKeys(t, cut, "12345678")
		if got := cut.Restore().Batches; got != uint64(5-kept) || cut.LastSeq() != 8 {
			t.Errorf("%d kept: %d batches restored, the last one is %d", kept, got, cut.LastSeq())
		}
	}
}

// A standby has all batches, and the log has no record of it.
func TestFollowAppliesAndAppendsNothing(t *testing.T) {
	log, copies := written(t)
	before := len(records(log))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watched := &hookedLog{Memory: log}
	standby := place()
	applied := make(chan struct{}, 10)
	ended := make(chan error)
	go func() {
		ended <- replica.Follow(ctx, watched, &notifying{standby, applied}, quiet())
	}()
	for range 3 {
		<-applied
	}
	s := &counted{Store: open(t, log, copies)}
	mustPut(t, s, 4, 4)
	<-applied
	cancel()
	if err := <-ended; err != nil || watched.appends > 0 || len(records(log)) != before+2 {
		t.Errorf("%v; it has appended %d records, %d of %d are of others", err, watched.appends, before+2, len(records(log)))
	}
	warm := open(t, log, standby)
	wantKeys(t, warm, "1234")
	if warm.Restore().Batches != 0 {
		t.Errorf("%+v", warm.Restore())
	}
}

// notifying copies say when a batch was applied.
type notifying struct {
	*memCopies
	applied chan struct{}
}

func (n *notifying) Create(id storage.Identity) (storage.Store, error) {
	s, err := n.memCopies.Create(id)
	if err != nil {
		return nil, err
	}
	return notifyingStore{s, n.applied}, nil
}

type notifyingStore struct {
	storage.Store
	applied chan struct{}
}

func (n notifyingStore) Apply(b *storage.Batch) (func() error, error) {
	wait, err := n.Store.Apply(b)
	return func() error {
		err := wait()
		n.applied <- struct{}{}
		return err
	}, err
}

const aWeek weekbucket.Week = 0x19cd4

func claimWrite(scope string, week weekbucket.Week) storage.Batch {
	return storage.Batch{Claims: []storage.ClaimWrite{{Key: storage.Bucket{Scope: scope, Week: week}.AppendKey(nil, []byte("id")), Record: []byte("record")}}}
}

func mark(key string, week weekbucket.Week) storage.Batch {
	return storage.Batch{State: []storage.StateWrite{{Key: []byte(key), Value: week.AppendKey(nil)}}}
}

// buckets returns the buckets of a store, as text.
func buckets(t *testing.T, s storage.Store) string {
	t.Helper()
	var list []string
	if err := s.Buckets(func(b storage.Bucket) error {
		list = append(list, fmt.Sprint(b.Scope, int(b.Week)-int(aWeek)))
		return nil
	}); err != nil {
		t.Error(err)
	}
	return strings.Join(list, " ")
}

// A copy drops the buckets before a mark before it applies the next batch, also if it ended in between.
func TestCopyDropsBucketsAtTheMark(t *testing.T) {
	log := &replica.Memory{}
	owner := open(t, log, place())
	for i, b := range []storage.Batch{
		mark("moldest", aWeek), claimWrite("a", aWeek), claimWrite("b", aWeek), claimWrite("a", aWeek+1), claimWrite("b", aWeek+1),
		mark("moldest", aWeek+1), mark("fb", aWeek+2), claimWrite("b", aWeek+2),
	} {
		b.Seq = uint64(i + 1)
		wait, err := owner.Apply(&b)
		if err != nil || wait() != nil {
			t.Fatal(err)
		}
	}
	var at []string // before each batch
	copies := place()
	restored := open(t, log, &bucketCopies{t: t, memCopies: copies, at: &at})
	if want := "|||a0|a0 b0|a0 a1 b0|a0 a1 b0 b1|a1 b1|a1"; strings.Join(at, "|") != want[1:] {
		t.Errorf("before each batch there are %s\nwant %s", strings.Join(at, "|"), want[1:])
	}
	if got := buckets(t, restored); got != "a1 b2" {
		t.Errorf("restored: %s", got)
	}
	_ = restored.Close()

	// the power is cut between a mark and its drop
	cut := place()
	cut.failDrop = true
	refused(t, log, cut, storetest.ErrPowerCut)
	if got := cut.last.LastSeq(); got != 0 {
		t.Fatal(got)
	}
	clone := cut.last.CrashClone(0)
	_ = clone.Close()
	at = nil
	again := open(t, log, &bucketCopies{t: t, memCopies: &memCopies{disk: clone.Disk(), dir: "copy", made: true}, at: &at})
	if len(at) != 1 || at[0] != "a1" {
		t.Errorf("before the rest there are %q", at)
	}
	if got := buckets(t, again); got != "a1 b2" {
		t.Errorf("restored: %s", got)
	}
}

// bucketCopies note the buckets before each batch.
type bucketCopies struct {
	*memCopies
	t  *testing.T
	at *[]string
}

func (b *bucketCopies) Open() (storage.Store, error) { return b.watch(b.memCopies.Open()) }

func (b *bucketCopies) Create(id storage.Identity) (storage.Store, error) {
	return b.watch(b.memCopies.Create(id))
}

func (b *bucketCopies) watch(s storage.Store, err error) (storage.Store, error) {
	if err == nil {
		b.last.Before(storetest.OpApply, func(int) error {
			*b.at = append(*b.at, buckets(b.t, s))
			return nil
		})
	}
	return s, err
}

// The engine's drops of weeks and of scopes reach a copy that is restored.
func TestDropsOfTheEngineReachACopy(t *testing.T) {
	ctx := context.Background()
	now := time.Date(2026, 6, 24, 12, 0, 0, 0, time.UTC)
	log := &replica.Memory{}
	e, err := engine.Open(open(t, log, place()), engine.Options{Clock: func() time.Time { return now }, Nightly: engine.Nightly{Off: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, scope := range []string{"kept", "dropped"} {
		for weeks := range 3 {
			if r, err := e.TryClaim(ctx, engine.Event{Scope: scope, ID: []byte("id"), Time: now.AddDate(0, 0, -7*weeks), Origin: engine.Origin{Topic: "t"}}); err != nil || r.Verdict != engine.Claimed {
				t.Fatal(r, err)
			}
		}
	}
	week, err := weekbucket.Of(now.AddDate(0, 0, -14))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Retention().DropWeek(ctx, week); err != nil {
		t.Fatal(err)
	}
	plan, err := e.Retention().PlanScopeDrop(ctx, "dropped")
	if err == nil {
		_, err = e.Retention().DropScope(ctx, plan)
	}
	if err != nil || e.Close() != nil {
		t.Fatal(err)
	}
	s := open(t, log, place())
	var got []storage.Bucket
	if err := s.Buckets(func(b storage.Bucket) error { got = append(got, b); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != (storage.Bucket{Scope: "kept", Week: week + 1}) || got[1] != (storage.Bucket{Scope: "kept", Week: week + 2}) {
		t.Errorf("a restored copy has %v", got)
	}
}
