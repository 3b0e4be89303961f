package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

func TestPartitionsThatShareKeysRunTheirHandlersOnce(t *testing.T) {
	const partitions, each = 6, 500
	r := newRig(t, partitions)
	for p := range int32(partitions) {
		r.send(t, p, numbered(fmt.Sprintf("p%d-", p), each)...)
	}
	var calls atomic.Int64
	r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, _ *Record) error {
		calls.Add(1)
		_, _, err := tx.Get([]byte("shared"))
		runtime.Gosched()
		return errors.Join(err, tx.Put([]byte("shared"), nil))
	}), func(o *Options) { o.MaxBatch = 5 })
	for p := range int32(partitions) {
		r.untilStored(t, p, each)
	}
	if n := calls.Load(); n > partitions*each*11/10 {
		t.Errorf("%d calls of the handler for %d events", n, partitions*each)
	}
}
