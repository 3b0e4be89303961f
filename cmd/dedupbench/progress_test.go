package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestProgressIsOneLineThatIsRemoved(t *testing.T) {
	var stdout, stderr bytes.Buffer
	o := &output{stdout: &stdout, stderr: &stderr}
	o.draw("produce", 1, 3)
	o.draw("produce", 2, 3) // too soon
	o.draw("reopen", 0, 0)
	o.tell("done")
	if want := clearLine + "produce: 1 of 3" + clearLine + "reopen" + clearLine; stderr.String() != want || stdout.String() != "done\n" {
		t.Errorf("%q, %q", stderr.String(), stdout.String())
	}
}

func TestNoProgressWithoutATerminal(t *testing.T) {
	if o := (&output{stderr: &strings.Builder{}}); o.show() != nil {
		t.Error("progress is shown where nobody sees it")
	}
}
