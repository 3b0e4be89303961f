package kafkaadapter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// policies returns the policies for the next comparison of offsets: those of Options.Recovery and
// the adopted ones.
func (f *finder) policies() resume.Policies {
	r := make(resume.Policies)
	for kind, policy := range f.partition.c.opt.Recovery {
		r[kind] = resume.Policy(policy)
	}
	for _, a := range f.adoptedNow() {
		r[a.kind] = resume.Policy(a.policy)
	}
	return r
}

// decide returns where the partition is read, given begin and the current policies.
func (f *finder) decide(v *resume.Facts, begin func(resume.Policies) (resume.Beginning, error)) (resume.Beginning, error) {
	b, refused := begin(f.policies())
	switch {
	case refused == nil:
		return b, nil
	case errors.Is(refused, ErrPartitionsChanged):
		return b, fmt.Errorf("%w (topic %s had %d partitions and has %d)", f.refuse(v, refused), f.partition.pos.Topic, v.Before.Partitions, v.Topic.Partitions)
	}
	return b, f.refuse(v, refused)
}

// refuse returns the error of a partition that is not read because its offsets disagree.
func (f *finder) refuse(v *resume.Facts, kind error) *PositionError {
	e := &PositionError{Topic: f.partition.pos.Topic, Partition: f.partition.pos.Partition, Kind: kind, Store: -1, Committed: -1, Start: v.Start, End: v.End, Metadata: v.Metadata()}
	if v.Store != nil {
		e.Store = v.Store.Next
	}
	if v.Committed != nil {
		e.Committed = v.Committed.Offset
	}
	return e
}

// adoptedNow returns the adoptions for the next comparison of offsets: the requested one, and
// earlier ones that met a further disagreement.
func (f *finder) adoptedNow() []*adoption {
	if f.state.adopting == nil {
		return nil
	}
	return append(slices.Clone(f.partition.status().adopted), f.state.adopting)
}

// adopted records an adoption inside the transaction that takes the partition over at b.
func (f *finder) adopted(tx *engine.Tx, v *resume.Facts, b resume.Beginning) error {
	now := time.Now().UTC()
	if errors.Is(b.Kind, resume.ErrRanOpen) {
		a := Adoption{Time: now, Kind: "RanOpen", Policy: RecoveryPolicy(b.Way), Reason: "records before it were handled without claims while the store was unavailable (Options.ReopenStore)"}
		return f.putAdoption(tx, v, b, b.Kind, a)
	}
	for _, a := range f.adoptedNow() {
		if b.Kind == nil { // the store and Kafka now agree
			continue
		}
		err := f.putAdoption(tx, v, b, a.kind, Adoption{Time: now, Kind: disagreementOf(a.kind).name, Policy: a.policy, Reason: a.reason})
		if err != nil {
			return err
		}
		now = now.Add(1) // the key of the next one
	}
	return nil
}

// putAdoption completes the record of an adoption and stores it.
func (f *finder) putAdoption(tx *engine.Tx, v *resume.Facts, b resume.Beginning, kind error, a Adoption) error {
	at := f.refuse(v, kind)
	a.Topic, a.Partition, a.Store, a.Committed, a.Metadata, a.Offset = f.partition.pos.Topic, f.partition.pos.Partition, at.Store, at.Committed, at.Metadata, b.Offset
	record, err := json.Marshal(a)
	if err != nil {
		return err
	}
	key := binary.BigEndian.AppendUint64(partitionKey(keyAdoption, f.partition.pos), uint64(a.Time.UnixNano()))
	return own(tx).Put(key, append([]byte{1}, record...))
}

// endAdoption ends the submitted adoption and returns it, nil if there is none; finish reports its
// outcome. An adoption that has met a further disagreement stays pending until that is resolved.
func (f *finder) endAdoption(err error) *adoption {
	a := f.state.adopting
	f.partition.mu.Lock()
	if errors.As(err, new(*PositionError)) && a != nil {
		f.partition.stat.adopted = slices.DeleteFunc(slices.Clone(f.partition.stat.adopted), func(b *adoption) bool { return errors.Is(b.kind, a.kind) })
		f.partition.stat.adopted = append(f.partition.stat.adopted, a)
	} else {
		f.partition.stat.adopted = nil
	}
	if a != nil {
		f.partition.stat.adopting = nil
	}
	f.partition.mu.Unlock()
	f.state.adopting = nil
	return a
}
