package engine_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

var (
	histories = flag.Int("histories", 0, "histories for each linearizability test, 0 = a few")
	seedFlag  = flag.Uint64("seed", 0, "seed of the first history, 0 = random")
)

// eachSeed runs fn with n seeds, and prints the seed of a run that fails.
func eachSeed(t *testing.T, n int, fn func(t *testing.T, rnd *rand.Rand, seed uint64)) {
	if *histories > 0 {
		n = *histories
	}
	first := *seedFlag
	if first == 0 {
		first = rand.Uint64() | 1
	}
	for seed := first; seed < first+uint64(n) && !t.Failed(); seed++ {
		fn(t, rand.New(rand.NewPCG(seed, 0)), seed)
		if t.Failed() {
			t.Logf("run it again with -run %s -seed %d", t.Name(), seed)
		}
	}
}

// The model of a set of claims: eight events, the first four of them in a week that may be dropped.
type (
	claimsState struct {
		has     uint8 // a bit for each event
		dropped bool
	}
	claimsInput struct {
		op  string // claim, tryInTx, commit, forget, lookup, drop
		bit uint8  // of the event, or of all claims of a commit
	}
	claimsOutput struct {
		verdict engine.Verdict // of claim and tryInTx
		found   bool           // of forget and lookup
		err     error          // of commit and forget
	}
)

const (
	oldEvents  = uint8(0x0F)
	testEvents = 8
)

func stepClaims(state, input, output any) (bool, any) {
	s, in, out := state.(claimsState), input.(claimsInput), output.(claimsOutput)
	has := s.has&in.bit != 0
	tooOld := s.dropped && in.bit&oldEvents != 0
	// While its week is being dropped, an event may look new inside a transaction, whose commit
	// then fails.
	open := !has && !tooOld || in.op == "tryInTx" && in.bit&oldEvents != 0
	switch in.op {
	case "claim", "tryInTx":
		switch out.verdict {
		case engine.Claimed:
			if in.op == "claim" {
				s.has |= in.bit
			}
			return open, s
		case engine.Duplicate:
			return has, s
		case engine.InFlight: // its holder is checked separately
			return open, s
		case engine.TooOld:
			return tooOld, s
		}
	case "commit":
		switch {
		case out.err == nil:
			s.has |= in.bit
			return !has && !tooOld, s
		case errors.Is(out.err, engine.ErrWeekDropped):
			return tooOld, s
		case errors.Is(out.err, engine.ErrConflict):
			return has, s
		}
	case "forget":
		if errors.Is(out.err, engine.ErrConflict) {
			return true, s // its holder is checked separately
		}
		s.has &^= in.bit
		return out.err == nil && out.found == has, s
	case "lookup":
		return out.found == has, s
	case "drop":
		s.has &^= oldEvents
		s.dropped = true
		return out.err == nil, s
	}
	return false, s
}

var claimsModel = porcupine.Model{
	Init: func() any { return claimsState{} },
	Step: stepClaims,
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}

// A recorder collects a history. Times are those of one monotonic clock.
type recorder struct {
	begin time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
	holds []holding
}

// A holding is the period in which a transaction may have held an event.
type holding struct {
	client     int
	bit        uint8
	from, till int64
}

func (r *recorder) now() int64 { return int64(time.Since(r.begin)) }

func (r *recorder) do(client int, in claimsInput, fn func() claimsOutput) claimsOutput {
	call := r.now()
	out := fn()
	r.add(porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: r.now()})
	return out
}

func (r *recorder) add(op porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
}

func (r *recorder) held(h holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, h)
}

// undecided is the result of check for a history whose order could not be searched in time. Long
// stalls of the machine make many operations concurrent, and the search is exponential in their
// number: this is not a violation.
const undecided = "the history took too long to check"

// checkTime bounds the search of one history, which usually takes milliseconds.
const checkTime = time.Minute

// check returns why the history is not that of a set of claims, "" if it is.
func (r *recorder) check() string {
	for _, op := range r.ops {
		in, out := op.Input.(claimsInput), op.Output.(claimsOutput)
		if out.verdict != engine.InFlight && (in.op != "forget" || out.err == nil) {
			continue
		}
		explained := false
		for _, h := range r.holds {
			explained = explained || h.client != op.ClientId && h.bit == in.bit && h.from <= op.Return && h.till >= op.Call
		}
		if !explained {
			return fmt.Sprintf("%+v returned %+v, but no transaction held the event", in, out)
		}
	}
	switch porcupine.CheckOperationsTimeout(claimsModel, r.ops, checkTime) {
	case porcupine.Illegal:
		return "the history is not that of a set of claims"
	case porcupine.Unknown:
		return undecided
	}
	return ""
}

// A claimer is one goroutine of a history.
type claimer struct {
	*recorder
	t      *testing.T
	e      *engine.Engine
	rnd    *rand.Rand
	client int
	member *driver.LaneMember // nil for none
	oldest weekbucket.Week    // the week of the old events
	flight []func()           // batches that were started: each waits for one
}

func bitEvent(i int) engine.Event {
	ev := event(fmt.Sprint(i))
	if 1<<i&oldEvents != 0 {
		ev.Time = noon.AddDate(0, 0, -7*engine.DefaultRetentionWeeks)
	}
	return ev
}

func (c *claimer) verdict(r engine.Result, err error) claimsOutput {
	if err != nil {
		c.t.Errorf("claiming: %v", err)
	}
	return claimsOutput{verdict: r.Verdict}
}

func (c *claimer) step() {
	i := c.rnd.IntN(testEvents)
	bit, ev := uint8(1)<<i, bitEvent(i)
	switch n := c.rnd.IntN(20); {
	case n < 3:
		c.startBatch()
	case n < 6:
		c.do(c.client, claimsInput{"claim", bit}, func() claimsOutput { return c.verdict(c.e.TryClaim(ctx, ev)) })
	case n < 14:
		c.transaction()
	case n < 17:
		c.do(c.client, claimsInput{"forget", bit}, func() claimsOutput {
			found, err := c.e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time)
			return claimsOutput{found: found, err: err}
		})
	case n < 19 || c.rnd.IntN(6) > 0:
		c.do(c.client, claimsInput{"lookup", bit}, func() claimsOutput {
			_, found, err := c.e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time)
			if err != nil {
				c.t.Errorf("lookup: %v", err)
			}
			return claimsOutput{found: found}
		})
	default:
		c.drop()
	}
}

// startBatch starts a batch of some events, and waits for those before it, but for two at most.
func (c *claimer) startBatch() {
	var events []engine.Event
	var bits []uint8
	for range 1 + c.rnd.IntN(3) {
		i := c.rnd.IntN(testEvents)
		events, bits = append(events, bitEvent(i)), append(bits, uint8(1)<<i)
	}
	call := c.now()
	b := c.e.StartClaimBatch(ctx, events)
	c.flight = append(c.flight, func() {
		results, err := b.Wait(ctx)
		ended := c.now()
		for i, r := range results {
			// Its client may itself hold the event in a transaction meanwhile.
			c.add(porcupine.Operation{ClientId: c.client + 100, Input: claimsInput{"claim", bits[i]}, Call: call, Output: c.verdict(r, err), Return: ended})
		}
	})
	c.await(2)
}

// await waits for all batches that were started but for the given number.
func (c *claimer) await(open int) {
	for len(c.flight) > open {
		c.flight[0]()
		c.flight = c.flight[1:]
	}
}

// drop drops the old events' week. The second caller finds that another week is the oldest.
func (c *claimer) drop() {
	call := c.now()
	_, err := c.e.Retention().DropWeek(ctx, c.oldest)
	if err == nil {
		c.add(porcupine.Operation{ClientId: c.client, Input: claimsInput{op: "drop"}, Call: call, Output: claimsOutput{}, Return: c.now()})
	} else if !errors.Is(err, engine.ErrNotOldestWeek) {
		c.t.Errorf("dropping: %v", err)
	}
}

func (c *claimer) transaction() {
	began := c.now()
	var claimed uint8
	var touched []uint8
	var handedOver int64
	err := driver.Update(ctx, c.e, func(tx *engine.Tx) error {
		for range 1 + c.rnd.IntN(3) {
			i := c.rnd.IntN(testEvents)
			bit := uint8(1) << i
			if claimed&bit != 0 {
				continue
			}
			touched = append(touched, bit)
			if c.rnd.IntN(2) == 0 {
				other := c.rnd.IntN(testEvents)
				touched = append(touched, uint8(1)<<other)
				if err := driver.Prefetch(tx, []engine.Event{bitEvent(i), bitEvent(other)}); err != nil {
					return err
				}
			}
			s, err := tx.Savepoint()
			if err != nil {
				return err
			}
			out := c.do(c.client, claimsInput{"tryInTx", bit}, func() claimsOutput { return c.verdict(tx.TryClaim(bitEvent(i))) })
			if out.verdict != engine.Claimed {
				continue
			}
			if c.rnd.IntN(4) == 0 {
				if err := tx.RollbackTo(s); err != nil {
					return err
				}
				continue
			}
			claimed |= bit
			if c.rnd.IntN(3) == 0 {
				runtime.Gosched()
			}
		}
		if c.rnd.IntN(3) == 0 {
			return errBoom
		}
		handedOver = c.now()
		return nil
	}, driver.UpdateOptions{Lane: c.member})
	ended := c.now()
	for _, bit := range touched {
		c.held(holding{c.client, bit, began, ended})
	}
	switch {
	case errors.Is(err, errBoom), claimed == 0 && err == nil:
	default:
		c.add(porcupine.Operation{ClientId: c.client, Input: claimsInput{"commit", claimed}, Call: handedOver, Output: claimsOutput{err: err}, Return: ended})
	}
}

// claimsHistory records the results of some clients that share one engine.
func claimsHistory(t *testing.T, store storage.Store, rnd *rand.Rand, clients, steps int) *recorder {
	e := open(t, store, engine.Options{RecentClaims: []int{-1, 1, 100}[rnd.IntN(3)]})
	r := &recorder{begin: time.Now()}
	var wg sync.WaitGroup
	for client := range clients {
		c := &claimer{recorder: r, t: t, e: e, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 1)), client: client, oldest: e.Retention().OldestWeek()}
		if client%2 == 0 {
			c.member = driver.JoinLane(e, time.Millisecond)
		}
		wg.Go(func() {
			for range steps {
				c.step()
				if c.rnd.IntN(3) == 0 {
					c.await(0)
				}
			}
			c.await(0)
		})
	}
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	return r
}

// jitter makes the calls of a store take different times.
func jitter(m *storetest.Mem, seed uint64) {
	for i, op := range []storetest.Op{storetest.OpApply, storetest.OpWait, storetest.OpClaim, storetest.OpDrop} {
		m.Before(op, func(call int) error {
			switch (uint64(call)*2654435761 + seed + uint64(i)) >> 3 % 5 {
			case 0:
				time.Sleep(20 * time.Microsecond)
			case 1, 2:
				runtime.Gosched()
			}
			return nil
		})
	}
}

func TestAnswersAreThoseOfOneSetOfClaims(t *testing.T) {
	ops, all, open := 0, 0, 0
	eachSeed(t, 60, func(t *testing.T, rnd *rand.Rand, seed uint64) {
		m := storetest.NewMem(storage.Identity{})
		jitter(m, seed)
		r := claimsHistory(t, m, rnd, 2+rnd.IntN(3), 20)
		switch wrong := r.check(); wrong {
		case "":
		case undecided:
			open++
		default:
			// also at the end: reports truncate long texts
			t.Errorf("%s\n%s%s", wrong, describe(r.ops), wrong)
		}
		ops += len(r.ops)
		all++
	})
	t.Logf("%d operations in %d histories, %d of them undecided", ops, all, open)
	if open > 1+all/5 {
		t.Errorf("%d of %d histories are undecided: make them shorter", open, all)
	}
}

func describe(ops []porcupine.Operation) (s string) {
	for _, op := range ops {
		s += fmt.Sprintf("client %d [%d,%d] %+v -> %+v\n", op.ClientId, op.Call, op.Return, op.Input, op.Output)
	}
	return s
}

// denying is a store that sometimes does not find a claim that it has: the check must detect this.
type denying struct {
	*storetest.Mem
	mu    sync.Mutex
	calls int
}

func (d *denying) Claim(key []byte) ([]byte, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls++; d.calls%7 == 0 {
		return nil, false, nil
	}
	return d.Mem.Claim(key)
}

func TestTheCheckOfHistoriesDetectsAStoreThatDenies(t *testing.T) {
	eachSeed(t, 1, func(t *testing.T, rnd *rand.Rand, _ uint64) {
		for range 50 {
			if r := claimsHistory(t, &denying{Mem: storetest.NewMem(storage.Identity{})}, rnd, 4, 25); r.check() != "" && r.check() != undecided {
				return
			}
		}
		t.Error("50 histories on a store that forgets claims passed the check")
	})
}

// Transfers between accounts. The model is the balances; every transaction reports its reads and
// writes.
const accounts = 4

type balances [accounts]int

type transferInput struct {
	from, to, amount int // amount 0 only reads all
	way              transferWay
}

// A transferWay is how a transaction changes the accounts.
type transferWay int

const (
	readAndPut transferWay = iota
	addOnly
	addAndRead
	transferWays
)

// transferOutput is the result of the reads: all accounts if the amount is 0, otherwise from and
// to, before a Put or after an Add.
type transferOutput struct{ read balances }

var transferModel = porcupine.Model{
	Init: func() any { return balances{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(balances), input.(transferInput), output.(transferOutput)
		if in.amount == 0 {
			return out.read == s, s
		}
		before := s
		s[in.from] -= in.amount
		s[in.to] += in.amount
		switch in.way {
		case readAndPut:
			return out.read[in.from] == before[in.from] && out.read[in.to] == before[in.to], s
		case addAndRead:
			return out.read[in.from] == s[in.from] && out.read[in.to] == s[in.to], s
		}
		return true, s
	},
}

func account(i int) []byte { return fmt.Appendf(nil, "account %d", i) }

func readAccount(tx *engine.Tx, i int) (int, error) {
	v, found, err := tx.Get(account(i))
	if !found || err != nil {
		return 0, err
	}
	n, err := engine.DecodeInt64(v)
	return int(n), err
}

// transfer runs one transaction, in the lane if there is a member. If split is set, it uses one
// transaction for each of its two steps: this is the effect of a store without validation.
func transfer(e *engine.Engine, in transferInput, split bool, member *driver.LaneMember) (out transferOutput, err error) {
	read := func(tx *engine.Tx) (err error) {
		out = transferOutput{}
		for i := range accounts {
			if in.amount == 0 || i == in.from || i == in.to {
				if out.read[i], err = readAccount(tx, i); err != nil {
					return err
				}
			}
		}
		return nil
	}
	put := func(tx *engine.Tx, to, n int) error { return tx.Put(account(to), engine.EncodeInt64(int64(n))) }
	take := func(tx *engine.Tx) error { return tx.Add(account(in.from), int64(-in.amount)) }
	give := func(tx *engine.Tx) error { return tx.Add(account(in.to), int64(in.amount)) }
	nothing := func(*engine.Tx) error { return nil }
	write := func(tx *engine.Tx) error {
		return errors.Join(put(tx, in.from, out.read[in.from]-in.amount), put(tx, in.to, out.read[in.to]+in.amount))
	}
	steps := [2]func(*engine.Tx) error{read, write}
	switch {
	case in.amount == 0:
		steps[1] = nothing
	case in.way == addOnly:
		steps = [2]func(*engine.Tx) error{take, give}
	case in.way == addAndRead:
		steps = [2]func(*engine.Tx) error{func(tx *engine.Tx) error { return errors.Join(take(tx), give(tx)) }, read}
	}
	if split {
		err = e.Update(ctx, steps[0], engine.Retries(100))
		runtime.Gosched()
		return out, errors.Join(err, e.Update(ctx, steps[1], engine.Retries(100)))
	}
	return out, driver.Update(ctx, e, func(tx *engine.Tx) error {
		if err := steps[0](tx); err != nil {
			return err
		}
		runtime.Gosched()
		return steps[1](tx)
	}, driver.UpdateOptions{Retries: 1000, Lane: member})
}

func transfers(t *testing.T, rnd *rand.Rand, seed uint64, ways []transferWay, clients, steps int, split, lane bool) (result porcupine.CheckResult, sum int) {
	m := storetest.NewMem(storage.Identity{})
	jitter(m, seed)
	e := open(t, m, engine.Options{})
	r := &recorder{begin: time.Now()}
	var wg sync.WaitGroup
	for client := range clients {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 2))
		var member *driver.LaneMember
		if lane && rnd.IntN(4) > 0 {
			member = driver.JoinLane(e, time.Duration(rnd.IntN(100))*time.Microsecond)
		}
		wg.Go(func() {
			for range steps {
				in := transferInput{from: rnd.IntN(accounts), amount: rnd.IntN(4), way: ways[rnd.IntN(len(ways))]}
				in.to = (in.from + 1 + rnd.IntN(accounts-1)) % accounts
				call := r.now()
				out, err := transfer(e, in, split, member)
				if err != nil {
					t.Errorf("transfer: %v", err)
				}
				r.add(porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: r.now()})
			}
		})
	}
	wg.Wait()
	// the reads are durable
	last, err := transfer(open(t, m.CrashClone(0), engine.Options{}), transferInput{}, false, nil)
	if err != nil {
		t.Errorf("reading all: %v", err)
	}
	now := r.now()
	r.add(porcupine.Operation{ClientId: clients, Input: transferInput{}, Call: now, Output: last, Return: now + 1})
	for _, n := range last.read {
		sum += n
	}
	return porcupine.CheckOperationsTimeout(transferModel, r.ops, checkTime), sum
}

func TestTransfersKeepTheSumAndHaveASerialOrder(t *testing.T) {
	open := 0
	eachSeed(t, 30, func(t *testing.T, rnd *rand.Rand, seed uint64) {
		ways := [][]transferWay{{readAndPut}, {addOnly}, {readAndPut, addOnly, addAndRead}}[seed%3]
		switch result, sum := transfers(t, rnd, seed, ways, 4, 20, false, seed%2 == 0); {
		case result == porcupine.Illegal || sum != 0:
			t.Errorf("%v, and the sum is %d", result, sum)
		case result == porcupine.Unknown:
			open++
		}
	})
	if open > 8 {
		t.Errorf("%d histories are undecided: make them shorter", open)
	}
}

func TestTheCheckOfTransfersDetectsSplitTransactions(t *testing.T) {
	for way := range transferWays {
		eachSeed(t, 1, func(t *testing.T, rnd *rand.Rand, seed uint64) {
			for range 50 {
				if result, _ := transfers(t, rnd, seed, []transferWay{way}, 6, 25, true, false); result == porcupine.Illegal {
					return
				}
			}
			t.Errorf("50 runs in the way %d, each transaction split in two, passed the check", way)
		})
	}
}
