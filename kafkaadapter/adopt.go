package kafkaadapter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// recovery returns the policies for the next comparison of offsets: those of the options and the
// adopted ones.
func (f *finder) recovery() Recovery {
	adopted := f.adoptedNow()
	if len(adopted) == 0 {
		return f.partition.c.opt.Recovery
	}
	r := make(Recovery)
	maps.Copy(r, f.partition.c.opt.Recovery)
	for _, a := range adopted {
		r[a.kind] = a.policy
	}
	return r
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
func (f *finder) adopted(tx *engine.Tx, v *view, b beginning) error {
	now := time.Now().UTC()
	if errors.Is(b.kind, errRanOpen) {
		a := Adoption{Time: now, Kind: "RanOpen", Policy: b.way, Reason: "records before it were handled without claims while the store was unavailable (Options.ReopenStore)"}
		return f.putAdoption(tx, v, b, b.kind, a)
	}
	for _, a := range f.adoptedNow() {
		if b.kind == nil { // the store and Kafka now agree
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
func (f *finder) putAdoption(tx *engine.Tx, v *view, b beginning, kind error, a Adoption) error {
	var at *PositionError
	errors.As(v.refuse(kind), &at)
	a.Topic, a.Partition, a.Store, a.Committed, a.Metadata, a.Offset = f.partition.pos.Topic, f.partition.pos.Partition, at.Store, at.Committed, at.Metadata, b.offset
	record, err := json.Marshal(a)
	if err != nil {
		return err
	}
	key := binary.BigEndian.AppendUint64(partitionKey(keyAdoption, f.partition.pos), uint64(a.Time.UnixNano()))
	return own(tx).Put(key, append([]byte{1}, record...))
}

// endAdoption ends the submitted adoption and returns it, nil if there is none; its outcome is
// reported by finish. An adoption that has met a further disagreement stays pending until that one
// is resolved.
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
