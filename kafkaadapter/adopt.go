package kafkaadapter

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// ErrNoPositionError is returned by AdoptOffset for a partition that is not assigned or not stopped
// by a PositionError.
var ErrNoPositionError = errors.New("hapax: the partition is not stopped by a PositionError")

// An Adoption is the record of one AdoptOffset that took effect, or of records that were handled
// without claims while the store was away (Options.FailOpen). The store keeps it.
type Adoption struct {
	Topic     string         `json:"topic"`
	Partition int32          `json:"partition"`
	Time      time.Time      `json:"time"`
	Kind      string         `json:"kind"`      // the field of Recovery for the disagreement, such as ForeignStore; RanOpen with Options.FailOpen
	Policy    RecoveryPolicy `json:"policy"`    // the policy that was applied
	Store     int64          `json:"store"`     // the store's offset before, -1 for none
	Committed int64          `json:"committed"` // the group's commit before, -1 for none
	Metadata  string         `json:"metadata"`  // of that commit: the identity of the store that made it
	Offset    int64          `json:"offset"`    // where reading began after
	Reason    string         `json:"reason"`    // as given to AdoptOffset
}

// An adoption is a request to apply a policy once.
type adoption struct {
	kind   error
	policy RecoveryPolicy
	reason string
	done   chan error // receives the outcome, once
}

func (a *adoption) finish(err error) {
	if a != nil {
		a.done <- err
	}
}

// AdoptOffset applies a recovery policy once to an assigned partition that is stopped by a
// PositionError, for example after the volume of its store was lost, without a change of
// Options.Recovery. The reason says who decided it and why: it is logged, and kept in the store
// with the offsets before and after (see Adoptions). It takes effect in one batch of the store,
// with the new offset and the ownership of the partition.
//
// AdoptOffset returns nil once the partition is owned at its new offset. It returns
// ErrNoPositionError if there is nothing to decide; an error that wraps ErrOption, with the
// policies that fit, for one that does not; and the next *PositionError if what was adopted cannot
// be read either: a further call decides on that, and both take effect together. If ctx ends first,
// its error is returned, and the policy may still be applied. Hooks.OnStop must not wait for
// AdoptOffset: the partition waits for the hook.
func (c *Consumer) AdoptOffset(ctx context.Context, topic string, partition int32, policy RecoveryPolicy, reason string) error {
	if reason == "" {
		return fmt.Errorf("%w: AdoptOffset needs a reason: say who decided it and why", ErrOption)
	}
	if _, away := c.links.get(); away != nil {
		return fmt.Errorf("%w: adopt the offset then", ErrUnprotected)
	}
	c.adopting.Lock() // one at a time: the status that is looked at here stays until the goroutine gets the request
	defer c.adopting.Unlock()
	p := c.partition(topicPartition{topic, partition})
	if p == nil {
		return fmt.Errorf("%w: %s/%d is not assigned to this consumer", ErrNoPositionError, topic, partition)
	}
	var at *PositionError
	s := p.status()
	if s.stop == nil || !errors.As(s.stop, &at) {
		return fmt.Errorf("%w: %s/%d is %v", ErrNoPositionError, topic, partition, s.state)
	}
	kind := at.Kind
	if i := slices.IndexFunc(s.adopted, func(a *adoption) bool { return fits(a.kind, policy) }); i >= 0 && !fits(kind, policy) {
		kind = s.adopted[i].kind // it changes what was adopted before
	}
	if !fits(kind, policy) {
		return fmt.Errorf("%w: %v is no policy for this disagreement: use %s", ErrOption, policy, waysOf(at.Kind))
	}
	a := &adoption{kind: kind, policy: policy, reason: reason, done: make(chan error, 1)}
	select {
	case p.adoptions <- a:
	case <-p.ending.Done():
		return ErrFenced
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recovery returns the policies for the next look at the partition: those of the options, and one
// that is adopted.
func (p *partition) recovery() *Recovery {
	r := p.c.opt.Recovery
	for _, a := range p.adoptedNow() {
		*disagreementOf(a.kind).policy(&r) = a.policy
	}
	return &r
}

// adoptedNow returns the adoptions that count for the next look at the partition: the one that is
// asked for, and those before it that met a further disagreement.
func (p *partition) adoptedNow() []*adoption {
	if p.adopting == nil {
		return nil
	}
	return append(slices.Clone(p.status().adopted), p.adopting)
}

// adopted records an adoption inside the transaction that takes the partition over at b.
func (p *partition) adopted(tx *engine.Tx, v *view, b beginning) error {
	now := time.Now().UTC()
	if errors.Is(b.kind, errRanOpen) {
		a := Adoption{Time: now, Kind: "RanOpen", Policy: b.way, Reason: "records before it were handled without claims while the store was away (Options.FailOpen)"}
		return p.putAdoption(tx, v, b, b.kind, a)
	}
	for _, a := range p.adoptedNow() {
		if b.kind == nil && !errors.Is(a.kind, ErrLogDiverged) { // store and Kafka agree by now
			continue
		}
		err := p.putAdoption(tx, v, b, a.kind, Adoption{Time: now, Kind: disagreementOf(a.kind).field, Policy: a.policy, Reason: a.reason})
		if err != nil {
			return err
		}
		now = now.Add(1) // the key of the next one
	}
	return nil
}

// putAdoption completes the record of an adoption, and puts it.
func (p *partition) putAdoption(tx *engine.Tx, v *view, b beginning, kind error, a Adoption) error {
	var at *PositionError
	errors.As(v.refuse(kind), &at)
	a.Topic, a.Partition, a.Store, a.Committed, a.Metadata, a.Offset = p.pos.Topic, p.pos.Partition, at.Store, at.Committed, at.Metadata, b.offset
	record, err := json.Marshal(a)
	if err != nil {
		return err
	}
	key := binary.BigEndian.AppendUint64(partitionKey(keyAdoption, p.pos), uint64(a.Time.UnixNano()))
	return tx.Put(key, append([]byte{1}, record...))
}

// endAdoption reports the outcome of an adoption, if there is one. One that has met a further
// disagreement counts until that is decided.
func (p *partition) endAdoption(err error) {
	a := p.adopting
	p.mu.Lock()
	if errors.As(err, new(*PositionError)) && a != nil {
		p.stat.adopted = slices.DeleteFunc(slices.Clone(p.stat.adopted), func(b *adoption) bool { return errors.Is(b.kind, a.kind) })
		p.stat.adopted = append(p.stat.adopted, a)
	} else {
		p.stat.adopted = nil
	}
	p.mu.Unlock()
	a.finish(err)
	p.adopting = nil
}

// Adoptions returns the offsets of the group that were adopted, ordered by topic, partition and
// time.
func (c *Consumer) Adoptions(ctx context.Context) (all []Adoption, err error) {
	prefix := appendText(append([]byte(KeyPrefix), keyAdoption), c.opt.Group)
	eng := c.engine()
	if eng == nil {
		return nil, ErrUnprotected
	}
	for kv, scanErr := range eng.Scan(ctx, engine.Range{Prefix: prefix}) {
		if scanErr != nil {
			return nil, scanErr
		}
		var a Adoption
		if len(kv.Value) == 0 || kv.Value[0] != 1 {
			return nil, unknownForm("an adoption", kv.Value)
		}
		if err := json.Unmarshal(kv.Value[1:], &a); err != nil {
			return nil, fmt.Errorf("hapax: reading an adoption: %w", err)
		}
		all = append(all, a)
	}
	return all, nil
}
