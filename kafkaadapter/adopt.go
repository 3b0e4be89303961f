package kafkaadapter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
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
