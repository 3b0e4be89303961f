package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
)

// A timing is a rate that is measured once in each round, because other load on a machine varies.
type timing struct {
	// take returns events per second. Its directory is new, and removed afterwards.
	take func(dir string) (perS float64, err error)
	perS []float64 // of the rounds
}

// inRounds measures all timings in each round, in rotating order: none always follows the same one.
func inRounds(rounds int, dir string, timings ...*timing) error {
	for i := range rounds {
		for j := range timings {
			t := timings[(i+j)%len(timings)]
			dir := filepath.Join(dir, "round-"+strconv.Itoa(i+1))
			perS, err := t.take(dir)
			if err == nil {
				err = os.RemoveAll(dir)
			}
			if err != nil {
				return err
			}
			t.perS = append(t.perS, perS)
			runtime.GC()
		}
	}
	return nil
}

func (t *timing) median() *float64 { return median(t.perS) }

func median(values []float64) *float64 {
	slices.Sort(values)
	return &values[len(values)/2]
}

func over(a, b *float64) *float64 {
	ratio := *a / *b
	return &ratio
}
