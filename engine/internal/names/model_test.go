package names

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A stored table: the state of a store, which has claims in one week.
type stored map[string]string

func (s stored) write(writes []storage.StateWrite) {
	for _, w := range writes {
		if w.Value == nil {
			delete(s, string(w.Key))
		} else {
			s[string(w.Key)] = string(w.Value)
		}
	}
}

func (s stored) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	for key, value := range s {
		if strings.HasPrefix(key, string(span.Prefix)) {
			if err := fn([]byte(key), []byte(value)); err != nil {
				return err
			}
		}
	}
	return nil
}

func loaded(t *testing.T, s stored) *Table {
	t.Helper()
	n := New(errFull)
	if err := n.Load(s); err != nil {
		t.Fatal(err)
	}
	return n
}

// Names are assigned and freed at random. Again and again, no two names have one number, those of
// retained claims are known, and the stored table is read back as it is.
func TestTableIsReadBackWithTheNamesOfRetainedWeeks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	n, s, oldest := New(errFull), stored{}, aWeek
	used := map[string]map[weekbucket.Week]bool{} // as a scope, or as a topic
	freed := 0
	for step := range 3000 {
		before := n.Count()
		switch week := oldest + weekbucket.Week(rnd.IntN(4)); rnd.IntN(20) {
		case 0:
			oldest++
			for more := true; more; {
				var writes []storage.StateWrite
				if writes, more = n.Release(oldest, nil, 5); len(writes) > 5 {
					t.Fatalf("%d writes, the limit is 5", len(writes))
				}
				s.write(writes)
			}
			freed += before - n.Count()
			for _, weeks := range used {
				delete(weeks, oldest-1)
			}
		case 1:
			scope := fmt.Sprint("scope", rnd.IntN(20))
			_, weeks, writes := n.ReleaseScope(scope, week, nil)
			s.write(writes)
			for _, w := range weeks {
				if w >= week || !used[scope][w] {
					t.Fatalf("step %d: %s was dropped before %s, and %s is released", step, scope, week, w)
				}
				delete(used[scope], w)
			}
		default:
			scope, topic := fmt.Sprint("scope", rnd.IntN(20)), fmt.Sprint("topic", rnd.IntN(20))
			_, _, writes, err := n.ClaimRefs(scope, topic, week, nil)
			if err != nil {
				t.Fatal(err)
			}
			s.write(writes)
			for _, name := range []string{scope, topic} {
				if used[name] == nil {
					used[name] = map[weekbucket.Week]bool{}
				}
				used[name][week] = true
			}
		}
		if step%8 != 0 {
			continue
		}
		again := loaded(t, s)
		for name, weeks := range used {
			number, known := n.Number(name)
			if known != (len(weeks) > 0) {
				t.Fatalf("step %d: %s is used in %d weeks, and known: %v", step, name, len(weeks), known)
			}
			if read, ok := again.Number(name); ok != known || read != number {
				t.Fatalf("step %d: %s has number %d, %v; it is read back as %d, %v", step, name, number, known, read, ok)
			}
			if back, err := n.Name(number); known && (err != nil || back != name) {
				t.Fatalf("step %d: number %d of %s is that of %s, %v", step, number, name, back, err)
			}
		}
		if again.Count() != n.Count() {
			t.Fatalf("step %d: %d names, %d are read back", step, n.Count(), again.Count())
		}
	}
	if freed < 100 {
		t.Errorf("only %d names were freed", freed)
	}
}

func TestNameTooManyIsTheGivenError(t *testing.T) {
	n := New(errFull)
	for i := range limits.Names {
		if _, _, err := n.ScopeRef(fmt.Sprint(i), aWeek, nil); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, writes, err := n.ScopeRef("one more", aWeek, nil); !errors.Is(err, errFull) || len(writes) > 0 {
		t.Errorf("%d writes, %v", len(writes), err)
	}
	if _, _, err := n.ScopeRef("0", aWeek, nil); err != nil {
		t.Errorf("a known name: %v", err)
	}
}
