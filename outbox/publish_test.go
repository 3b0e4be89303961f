package outbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestOnlyErrorsAboutTheMessageAreRefusals(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{kerr.MessageTooLarge, true},
		{fmt.Errorf("producing: %w", kerr.InvalidRecord), true},
		{kerr.UnknownTopicOrPartition, true},
		{kerr.TopicAuthorizationFailed, true},
		{fmt.Errorf("invalid record partitioning choice of 7 from 3 available"), true},
		{kerr.NotEnoughReplicas, false},
		{kerr.SaslAuthenticationFailed, false},
		{kerr.ClusterAuthorizationFailed, false},
		{kerr.InvalidProducerEpoch, false},
		{kgo.ErrRecordTimeout, false},
		{kgo.ErrClientClosed, false},
		{errDown, false},
		{fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}), false},
		{io.ErrUnexpectedEOF, false},
		{context.DeadlineExceeded, false},
		{errBatchTime, false},
	} {
		if got := refused(c.err); got != c.want {
			t.Errorf("%v: refused %v", c.err, got)
		}
	}
}
