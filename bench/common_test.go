package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

func TestErrorOfAFullDiskSaysWhatToDo(t *testing.T) {
	full := error(&fs.PathError{Op: "write", Path: "000004.log", Err: syscall.ENOSPC})
	err := fmt.Errorf("judging lines 1 to 9: %w", full)
	var o Outcome
	o.end(&err)
	if !errors.Is(err, full) || o.Error != err.Error() || !strings.Contains(o.Error, "free space") || !strings.Contains(o.Error, "--dir") {
		t.Errorf("the error is %v, the report's %q", err, o.Error)
	}
	err, o = errors.New("something else"), Outcome{}
	if o.end(&err); o.Error != "something else" {
		t.Errorf("another error is told as %q", o.Error)
	}
	err, o = nil, Outcome{}
	if o.end(&err); err != nil || o.Error != "" {
		t.Errorf("no error is told as %v, %q", err, o.Error)
	}
}

func TestSlowSyncDelaysAClaim(t *testing.T) {
	const slow = 20 * time.Millisecond
	e, err := openEngine(Pebble, t.TempDir()+"/store", tuning{slowSync: slow}, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := e.Engine.TryClaim(t.Context(), engine.Event{Scope: "s", ID: []byte("1"), Time: start, Origin: engine.Origin{Topic: "t"}}); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < slow {
		t.Errorf("a claim took %v, and each sync %v more", took, slow)
	}
	if err := e.Engine.Close(); err != nil {
		t.Error(err)
	}
}
