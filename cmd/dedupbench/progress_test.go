package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8"
)

func TestBarsOfAnUnfinishedRunEnd(t *testing.T) {
	var b bars
	var drawn bytes.Buffer
	b.draw(&drawn, mpb.WithAutoRefresh())
	b.tell("short of its total", 1, 3)
	b.tell("without a total", 0, 0)
	b.tell("reached", 3, 3)
	b.tell("short again", 2, 3)
	ended := make(chan struct{})
	go func() {
		b.finish()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the bars wait for a run that is over")
	}
	for _, stage := range []string{"short of its total", "without a total", "reached", "short again"} {
		if !strings.Contains(drawn.String(), stage) {
			t.Errorf("no bar for %q in\n%s", stage, drawn.String())
		}
	}
}

func TestNoBarsWithoutATerminal(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bars
	if b.on(f) != nil || b.on(&bytes.Buffer{}) != nil {
		t.Error("there are bars where nobody sees them")
	}
}
