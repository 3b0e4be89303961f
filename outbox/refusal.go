package outbox

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var errBatchTime = errors.New("outbox: the broker did not acknowledge it within Batch.Time")

// refusals are the broker's errors that are about a message or its topic.
var refusals = []error{
	kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation,
	kerr.CorruptMessage, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType,
	kerr.InvalidTopicException, kerr.TopicAuthorizationFailed,
	kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, // the client has retried
}

// outages are errors of the client that say nothing about a message.
var outages = []error{
	errBatchTime, context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	kgo.ErrClientClosed, kgo.ErrAborting, kgo.ErrMaxBuffered, kgo.ErrRecordTimeout, kgo.ErrRecordRetries,
}

// refused reports whether an error is about the message, and not about an unreachable broker.
func refused(err error) bool {
	is := func(target error) bool { return errors.Is(err, target) }
	var (
		broker  *kerr.Error
		network net.Error
		eof     *kgo.ErrFirstReadEOF
		loss    *kgo.ErrDataLoss
	)
	switch {
	case errors.As(err, &broker):
		return slices.ContainsFunc(refusals, is)
	case errors.As(err, &network), errors.As(err, &eof), errors.As(err, &loss):
		return false
	}
	return !slices.ContainsFunc(outages, is)
}
