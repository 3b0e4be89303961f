package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A VerifyReport is the result of Verify. A store without problems is undamaged.
type VerifyReport struct {
	Claims   uint64
	Problems []string // the first 100 problems; Total counts all
	Total    int
}

// maxProblems is the maximum number of problems that a VerifyReport lists.
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
	want, got := map[filters.Bucket]filters.Count{}, map[filters.Bucket]filters.Count{}
	// The claims are checked as of the start of the scan, against the counts, filters and oldest
	// weeks of that time: a drop may continue meanwhile.
	var view filters.View
	var oldest func(filters.Bucket) weekbucket.Week
	scopes := map[uint64]string{} // recorded now, because a drop may free the names
	err := a.scanner.beginScan(ctx, func() {
		oldest = a.finder.retained.oldestByNumber(a.finder.names)
		if view = a.finder.filters.View(); view.Trusted() {
			want = a.finder.filters.Counts()
		}
		for ref := range want {
			scopes[ref.Scope], _ = a.finder.names.Name(ref.Scope)
		}
	}, func(c scanned) error {
		if c.ref.Week < oldest(c.ref) {
			return nil
		}
		n := got[c.ref]
		n.Add(c.hash)
		got[c.ref] = n
		report.Claims++
		if view.CertainlyNew(c.ref.Week, c.hash) {
			report.add("the filter of %s denies the claim with key %x", c.ref.Week, c.key)
		}
		return nil
	})
	switch {
	case errors.Is(err, storage.ErrDamaged):
		report.add("%v", err)
	case err != nil:
		return report, err
	case view.Trusted():
		a.compareCounts(&report, scopes, want, got)
	}
	err = a.core.untilClose(ctx, func(ctx context.Context) error {
		return a.core.store.Verify(ctx, func(problem string) { report.add("%s", problem) })
	})
	return report, err
}

func (a *Admin) compareCounts(report *VerifyReport, scopes map[uint64]string, want, got map[filters.Bucket]filters.Count) {
	for ref := range got {
		if _, ok := want[ref]; !ok {
			want[ref] = filters.Count{}
		}
	}
	for ref, w := range want {
		name, known := scopes[ref.Scope]
		if !known {
			name, _ = a.finder.names.Name(ref.Scope)
		}
		if g := got[ref]; g != w && ref.Week >= a.finder.retained.oldestOf(name) {
			report.add("bucket %s: %d claims with hash %016x were written, %d with %016x are there",
				storage.Bucket{Scope: name, Week: ref.Week}, w.Claims, w.XOR, g.Claims, g.XOR)
		}
	}
}
