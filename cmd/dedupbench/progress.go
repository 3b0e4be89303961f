package main

import (
	"os"
	"time"

	"github.com/hapax-dev/hapax/bench"
)

const redrawEvery = 100 * time.Millisecond

// show returns a function that shows the progress of a run in one line on standard error; nil if
// standard error is not a terminal.
func (o *output) show() bench.Progress {
	f, ok := o.stderr.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return o.draw
}

// draw shows a stage when it starts, and then at intervals.
func (o *output) draw(stage string, done, total uint64) {
	if stage == o.stage && time.Since(o.drawn) < redrawEvery {
		return
	}
	o.stage, o.drawn = stage, time.Now()
	if total == 0 {
		say(o.stderr, clearLine+"%s", stage)
		return
	}
	say(o.stderr, clearLine+"%s: %d of %d", stage, done, total)
}

// tell prints a sentence.
func (o *output) tell(sentence string) {
	o.clear()
	say(o.stdout, "%s\n", sentence)
}
