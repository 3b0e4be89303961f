package bench

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writeEffects writes down that events were handled, in that order.
func writeEffects(t *testing.T, path string, log *topicLog, numbers ...uint64) {
	t.Helper()
	e, err := openEffects(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		if err := e.add(n, log.event(n, nil).ID); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestEffectsAreCountedByEvent(t *testing.T) {
	log, path := wholeLog(t, 5), filepath.Join(t.TempDir(), "effects")
	tally, err := readEffects(path, log)
	if once, twice := tally.handled(); once != 0 || twice != 0 || err != nil {
		t.Errorf("without a file: %d, %d, %v", once, twice, err)
	}
	writeEffects(t, path, log, 0, 4, 2, 4)
	writeEffects(t, path, log, 4, 0) // of a process that came later
	tally, err = readEffects(path, log)
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint32{2, 0, 1, 0, 3}; !slices.Equal(tally.counts, want) || tally.lines != 6 {
		t.Errorf("%d lines, counts %v, want %v", tally.lines, tally.counts, want)
	}
	if once, twice := tally.handled(); once != 3 || twice != 2 {
		t.Errorf("%d were handled, %d twice", once, twice)
	}
}

func TestEffectOfAnotherEventIsAnError(t *testing.T) {
	log := wholeLog(t, 2)
	right := string(appendEffect(nil, 1, log.event(1, nil).ID))
	for name, line := range map[string]string{
		"another id":         string(appendEffect(nil, 1, log.event(0, nil).ID)),
		"a number too high":  string(appendEffect(nil, 2, log.event(2, nil).ID)),
		"no number":          "x" + right[1:],
		"cut off":            right[:len(right)-1],
		"cut off in the id":  right[:20] + "\n",
		"shorter than one":   "0\n",
		"nothing but an end": "\n",
	} {
		path := filepath.Join(t.TempDir(), "effects")
		if err := os.WriteFile(path, []byte(right+line), 0o600); err != nil {
			t.Fatal(err)
		}
		if tally, err := readEffects(path, log); err == nil || tally.lines != 1 {
			t.Errorf("%s: %d lines, %v", name, tally.lines, err)
		}
	}
}
