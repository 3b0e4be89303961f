package main

import (
	"io"
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/cwriter"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/hapax-dev/hapax/bench"
)

// bars are progress bars, one for each stage of a run. They are shown on a terminal and nowhere
// else.
type bars struct {
	all   *mpb.Progress
	stage string
	bar   *mpb.Bar
}

// on returns the writer of a run's progress, nil if w is no terminal.
func (b *bars) on(w io.Writer) bench.Progress {
	f, ok := w.(*os.File)
	if !ok || !cwriter.IsTerminal(int(f.Fd())) {
		return nil
	}
	b.draw(f)
	return b.tell
}

func (b *bars) draw(w io.Writer, options ...mpb.ContainerOption) {
	b.all = mpb.New(append(options, mpb.WithOutput(w), mpb.WithWidth(40))...)
}

func (b *bars) tell(stage string, done, total uint64) {
	if stage != b.stage {
		b.end()
		b.stage = stage
		b.bar = b.all.AddBar(int64(total),
			mpb.PrependDecorators(decor.Name(stage, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(decor.CurrentNoUnit("%d")))
	}
	if total > 0 {
		b.bar.SetTotal(int64(total), false)
	}
	b.bar.SetCurrent(int64(done))
}

// tell prints a sentence above the bars if there are any.
func (o *output) tell(sentence string) {
	if o.progress.all != nil {
		say(o.progress.all, "%s\n", sentence)
		return
	}
	say(o.stdout, "%s\n", sentence)
}

// end leaves the bar of a stage as it is. A bar that did not come to its total would be waited for
// forever otherwise.
func (b *bars) end() {
	if b.bar != nil {
		b.bar.Abort(false)
		b.bar = nil
	}
}

// finish leaves the bars as they are; nothing is drawn after it.
func (b *bars) finish() {
	if b.all != nil {
		b.end()
		b.all.Wait()
		b.all = nil
	}
}
