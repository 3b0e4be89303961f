package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A VerifyReport is the result of Verify. The store is undamaged if there are no problems.
type VerifyReport struct {
	Claims   uint64
	Problems []string // the first 100; more are counted
	Total    int
}

// maxProblems is the number of problems that a VerifyReport lists.
const maxProblems = 100

func (r *VerifyReport) add(format string, args ...any) {
	r.Total++
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads the whole store while claims continue, and checks every claim and record, the
// filters, the counts and hashes of each bucket, and the store's own checksums. It takes as long as
// reading the whole store.
func (a *Admin) Verify(ctx context.Context) (VerifyReport, error) {
	var report VerifyReport
	want, got := map[bucketRef]count{}, map[bucketRef]count{}
	// Verify checks the claims as they are when the scan begins, against counts, filters and oldest
	// week of that moment: a drop may continue meanwhile.
	var filters map[weekbucket.Week]*bloom.Filter
	var oldest func(ref bucketRef) weekbucket.Week
	scopes := map[uint64]string{} // a drop may free their names
	trusted := false
	err := a.scanner.beginScan(ctx, func() {
		oldest = a.finder.retained.oldestByNumber(a.finder.names)
		if trusted = a.finder.filters.trusted.Load(); trusted {
			want, filters = a.finder.filters.copyCounts(), *a.finder.filters.filters.Load()
		}
		for ref := range want {
			scopes[ref.scope], _ = a.finder.names.name(ref.scope)
		}
	}, func(c scanned) error {
		if c.ref.week < oldest(c.ref) {
			return nil
		}
		n := got[c.ref]
		got[c.ref] = count{n.claims + 1, n.xor ^ c.hash}
		report.Claims++
		if f := filters[c.ref.week]; trusted && (f == nil || !f.MayContain(c.hash)) {
			report.add("the filter of %s denies the claim with key %x", c.ref.week, c.key)
		}
		return nil
	})
	switch {
	case errors.Is(err, storage.ErrDamaged):
		report.add("%v", err)
	case err != nil:
		return report, err
	case trusted:
		a.compareCounts(&report, scopes, want, got)
	}
	return report, a.untilClose(ctx, func(ctx context.Context) error {
		return a.core.store.Verify(ctx, func(problem string) { report.add("%s", problem) })
	})
}

func (a *Admin) compareCounts(report *VerifyReport, scopes map[uint64]string, want, got map[bucketRef]count) {
	for ref := range got {
		if _, ok := want[ref]; !ok {
			want[ref] = count{}
		}
	}
	for ref, w := range want {
		name, known := scopes[ref.scope]
		if !known {
			name, _ = a.finder.names.name(ref.scope)
		}
		if g := got[ref]; g != w && ref.week >= a.finder.retained.oldestOf(name) {
			report.add("bucket %s: %d claims with hash %016x were written, %d with %016x are there",
				storage.Bucket{Scope: name, Week: ref.week}, w.claims, w.xor, g.claims, g.xor)
		}
	}
}
