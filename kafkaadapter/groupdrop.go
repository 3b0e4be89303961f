package kafkaadapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/hapax-dev/hapax/engine"
)

// A GroupDropPlan lists the data of a consumer group that DropGroup removes. All its fields are
// exported, so it can be shown, stored and sent.
type GroupDropPlan struct {
	Group string
	// Offsets are the offsets that are removed, by topic and partition.
	Offsets map[string]map[int32]engine.Offset
	// Holds are the names of the holds that are released, see HoldNames.
	Holds []string
	// Scopes are the scopes that are no longer reserved for the group, so that another group may
	// claim in them. Their claims remain, see engine.Retention.PlanScopeDrop.
	Scopes []string
	// Notes is the number of the adapter's keys that are removed: owners of partitions, attempts,
	// adopted offsets, topics that were first read at their end, the assignment of pinned
	// partitions, and the numbers of partitions of their topics.
	Notes int
	// Unpublished is the number of keys with dead letters that are not published yet. DropGroup
	// returns ErrUnpublished if there are any: run a consumer of the group until they are
	// published.
	Unpublished int
}

// ErrUnpublished means that a group still has unpublished dead letters in the store.
var ErrUnpublished = errors.New("hapax: the group has unpublished dead letters, so nothing was dropped: run a consumer of the group until they are published")

// PlanGroupDrop returns what DropGroup would remove for an unused consumer group. It changes
// nothing.
func PlanGroupDrop(ctx context.Context, eng *engine.Engine, group string) (GroupDropPlan, error) {
	if eng == nil {
		return GroupDropPlan{}, errNilEngine
	}
	scan := func(r engine.Range) iter.Seq2[engine.KeyValue, error] { return eng.Scan(ctx, r) }
	plan, _, err := planGroupDrop(ctx, eng, group, scan)
	return plan, err
}

// DropGroup removes the data in the plan, in one transaction, if the plan still matches the store
// exactly. Otherwise it changes nothing and returns engine.ErrPlanOutdated. A second call with the
// same plan does nothing. No consumer of the group may run: a running consumer stops with
// ErrFenced, or makes the plan outdated.
//
// A consumer of the group that starts again later finds no offset in the store. As long as Kafka
// has the group's committed offsets, its partitions stop with ErrEmptyStore, unless
// Options.Recovery has a policy; without committed offsets it begins as a new group. In both cases,
// existing claims still make events duplicates.
func DropGroup(ctx context.Context, eng *engine.Engine, plan GroupDropPlan) error {
	if eng == nil {
		return errNilEngine
	}
	return eng.Update(ctx, func(tx *engine.Tx) error {
		now, keys, err := planGroupDrop(ctx, eng, plan.Group, tx.Scan)
		switch {
		case err != nil || now.isEmpty():
			return err
		case !now.equal(&plan):
			return fmt.Errorf("%w: it does not match the data of group %q in the store", engine.ErrPlanOutdated, plan.Group)
		case plan.Unpublished > 0:
			return ErrUnpublished
		}
		for _, key := range keys {
			err = errors.Join(err, own(tx).Delete(key))
		}
		for _, hold := range now.Holds {
			err = errors.Join(err, as(tx).ReleaseHold(hold))
		}
		for topic, partitions := range now.Offsets {
			for partition := range partitions {
				err = errors.Join(err, as(tx).DeleteOffset(engine.OffsetKey{Group: plan.Group, Topic: topic, Partition: partition}))
			}
		}
		return err
	}, engine.Retries(10))
}

func (p *GroupDropPlan) isEmpty() bool {
	return len(p.Offsets)+len(p.Holds)+len(p.Scopes)+p.Notes+p.Unpublished == 0
}

func (p *GroupDropPlan) equal(other *GroupDropPlan) bool {
	return p.Group == other.Group && maps.EqualFunc(p.Offsets, other.Offsets, maps.Equal) && slices.Equal(p.Holds, other.Holds) &&
		slices.Equal(p.Scopes, other.Scopes) && p.Notes == other.Notes && p.Unpublished == other.Unpublished
}

// planGroupDrop also returns the keys of the plan's scopes and notes. The transaction reads these
// keys with scans: a consumer that starts writes such keys before its first offset and hold, and so
// causes a conflict.
func planGroupDrop(ctx context.Context, eng *engine.Engine, group string, scan func(engine.Range) iter.Seq2[engine.KeyValue, error]) (plan GroupDropPlan, keys [][]byte, err error) {
	plan.Group = group
	for _, kind := range []byte{keyOwner, keyFirst, keyAdoption, keyPinned, keyShape, keyLetter} {
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
	offsets, err := eng.Admin().Offsets(ctx, group)
	if err != nil {
		return plan, nil, err
	}
	plan.Offsets = make(map[string]map[int32]engine.Offset)
	for p, o := range offsets {
		if plan.Offsets[p.Topic] == nil {
			plan.Offsets[p.Topic] = make(map[int32]engine.Offset)
		}
		plan.Offsets[p.Topic][p.Partition] = o
	}
	plan.Holds, err = HoldNames(ctx, eng, group)
	return plan, keys, err
}
