package hapaxtest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// chosen names the environment variable that replaces the handler of the examples by a wrong one.
const chosen = "HAPAXTEST_WRONG_HANDLER"

type handler = func(context.Context, *engine.Tx, *kafkaadapter.Record) error

// A wrong has a handler with a mistake, and the examples that show it.
type wrong struct {
	handler func(b *bank) handler
	shownBy []string
}

// What the wrong handlers have in place of state and messages.
var (
	balances sync.Map
	mails    atomic.Int64
)

var wrongs = map[string]wrong{
	"counts in a package variable": {func(b *bank) handler {
		return func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
			amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
			if err != nil {
				return kafkaadapter.Permanent(err)
			}
			old, _ := balances.LoadOrStore(string(rec.Key), int64(0))
			balances.Store(string(rec.Key), old.(int64)+amount)
			if _, err := tx.Produce(engine.Message{Topic: "receipts", Key: rec.Key, Value: rec.Value}); err != nil {
				return err
			}
			return b.approve(rec.Event.ID)
		}
	}, []string{"duplicate", "retry", "poison", "crash"}},
	"sends receipts outside of the transaction": {func(b *bank) handler {
		return func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
			amount, err := strconv.ParseInt(string(rec.Value), 10, 64)
			if err != nil {
				return kafkaadapter.Permanent(err)
			}
			mails.Add(1) // the receipt
			if err := tx.Add(rec.Key, amount); err != nil {
				return err
			}
			return b.approve(rec.Event.ID)
		}
	}, []string{"duplicate", "retry", "poison", "crash"}},
	"swallows errors": {func(b *bank) handler {
		return func(ctx context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
			_ = b.credit(ctx, tx, rec)
			return nil
		}
	}, []string{"retry", "poison"}},
	"never returns Permanent": {func(b *bank) handler {
		return func(ctx context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
			if err := b.credit(ctx, tx, rec); err != nil {
				return errors.New(err.Error())
			}
			return nil
		}
	}, []string{"poison"}},
}

// tested returns the handler of the examples.
func tested(b *bank) handler {
	if name := os.Getenv(chosen); name != "" {
		return wrongs[name].handler(b)
	}
	return b.credit
}

// TestWrongHandlersFailTheExamples runs the examples in processes with wrong handlers.
func TestWrongHandlersFailTheExamples(t *testing.T) {
	shown := map[string]bool{}
	for name, w := range wrongs {
		for _, example := range []string{"duplicate", "retry", "poison", "crash"} {
			want := slices.Contains(w.shownBy, example)
			shown[example] = shown[example] || want
			t.Run(name+"/"+example, func(t *testing.T) {
				cmd := exec.Command(os.Args[0], "-test.run=^Example_"+example+"$", "-test.v")
				cmd.Env = append(os.Environ(), chosen+"="+name)
				out, err := cmd.CombinedOutput()
				failed := strings.Contains(string(out), "--- FAIL: Example_"+example)
				if passed := strings.Contains(string(out), "--- PASS: Example_"+example); failed == passed || failed != (err != nil) {
					t.Fatalf("the example has no result: %v\n%s", err, out)
				}
				if failed != want {
					t.Errorf("the example fails: %t, want %t\n%s", failed, want, out)
				}
			})
		}
	}
	if len(shown) != 4 || !shown["duplicate"] || !shown["retry"] || !shown["poison"] || !shown["crash"] {
		t.Errorf("not every example fails with one of the wrong handlers: %v", shown)
	}
}
