package kafkaadapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/hapax-dev/hapax/engine"
)

// A GroupDropPlan says what DropGroup drops of a consumer group. It has no hidden part: it may be
// shown, stored and sent.
type GroupDropPlan struct {
	Group string
	// Offsets are forgotten.
	Offsets []engine.GroupOffset
	// Holds are released, see HoldNames.
	Holds []string
	// Scopes are no longer the group's: another group may claim in them. Their claims stay, see
	// engine.PlanScopeDrop.
	Scopes []string
	// Notes is how many small keys of the adapter go: owners of partitions, attempts, adopted
	// offsets, topics that began at their end, and the part of pinned partitions.
	Notes int
	// Unpublished is how many keys hold dead letters that are in the store and not in their topic.
	// DropGroup refuses a plan with any: run a consumer of the group until they are published.
	Unpublished int
}

// ErrUnpublished says that a group still has dead letters which are in the store alone.
var ErrUnpublished = errors.New("hapax: the group has dead letters that are not published, and nothing was dropped: run a consumer of the group until they are")

// PlanGroupDrop says what DropGroup would drop for a consumer group that is gone. It changes
// nothing.
func PlanGroupDrop(ctx context.Context, eng *engine.Engine, group string) (GroupDropPlan, error) {
	scan := func(r engine.Range) iter.Seq2[engine.KeyValue, error] { return eng.Scan(ctx, r) }
	plan, _, err := planGroupDrop(ctx, eng, group, scan)
	return plan, err
}

// DropGroup drops what the plan says, in one transaction, if that is still exactly what is there.
// Otherwise it changes nothing and returns engine.ErrPlanOutdated. Called again with a plan that
// was done, it does nothing. No consumer of the group may run: one that does is stopped with
// ErrFenced, or makes the plan outdated.
//
// A consumer of the group that starts again later finds no offset in the store. As long as Kafka
// has the group's commit its partitions stop with ErrEmptyStore, unless Options.Recovery says where
// to begin; without the commit it begins as a new group. Claims that were kept decide about the
// events in both cases.
func DropGroup(ctx context.Context, eng *engine.Engine, plan GroupDropPlan) error {
	return eng.Update(ctx, func(tx *engine.Tx) error {
		now, keys, err := planGroupDrop(ctx, eng, plan.Group, tx.Scan)
		switch {
		case err != nil || now.isEmpty():
			return err
		case !now.equal(&plan):
			return fmt.Errorf("%w: it is not what group %q has in the store", engine.ErrPlanOutdated, plan.Group)
		case plan.Unpublished > 0:
			return ErrUnpublished
		}
		for _, key := range keys {
			err = errors.Join(err, tx.Delete(key))
		}
		for _, hold := range now.Holds {
			err = errors.Join(err, tx.ReleaseHold(hold))
		}
		for _, o := range now.Offsets {
			err = errors.Join(err, engine.DeleteOffset(tx, o.Position))
		}
		return err
	}, engine.Retries(10))
}

func (p *GroupDropPlan) isEmpty() bool {
	return len(p.Offsets)+len(p.Holds)+len(p.Scopes)+p.Notes+p.Unpublished == 0
}

func (p *GroupDropPlan) equal(other *GroupDropPlan) bool {
	return p.Group == other.Group && slices.Equal(p.Offsets, other.Offsets) && slices.Equal(p.Holds, other.Holds) &&
		slices.Equal(p.Scopes, other.Scopes) && p.Notes == other.Notes && p.Unpublished == other.Unpublished
}

// planGroupDrop also returns the keys of the plan's scopes and notes. What scan has read is part of
// its transaction: a consumer that starts writes such keys before its first offset and hold.
func planGroupDrop(ctx context.Context, eng *engine.Engine, group string, scan func(engine.Range) iter.Seq2[engine.KeyValue, error]) (plan GroupDropPlan, keys [][]byte, err error) {
	plan.Group = group
	for _, kind := range []byte{keyOwner, keyAttempts, keyFirst, keyAdoption, keyPinned, keyLetter} {
		prefix := appendText(append([]byte(KeyPrefix), kind), group)
		for kv, err := range scan(engine.Range{Prefix: prefix}) {
			switch {
			case err != nil:
				return plan, nil, err
			case kind == keyLetter:
				plan.Unpublished++
			default:
				plan.Notes++
				keys = append(keys, bytes.Clone(kv.Key))
			}
		}
	}
	for kv, err := range scan(engine.Range{Prefix: scopeKey("")}) {
		if err != nil {
			return plan, nil, err
		}
		if string(kv.Value) == group {
			plan.Scopes = append(plan.Scopes, string(kv.Key[len(scopeKey("")):]))
			keys = append(keys, bytes.Clone(kv.Key))
		}
	}
	for o, err := range eng.Offsets(ctx, group) {
		if err != nil {
			return plan, nil, err
		}
		plan.Offsets = append(plan.Offsets, o)
	}
	plan.Holds, err = HoldNames(ctx, eng, group)
	return plan, keys, err
}
