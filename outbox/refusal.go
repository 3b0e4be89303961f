package outbox

import (
	"errors"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

var (
	errBatchTime = errors.New("hapax: outbox: the broker did not acknowledge it within Batch.Time")
	errSilent    = errors.New("hapax: outbox: its partition does not answer, while others do: see dedup_outbox_held_partitions")
)

// refusals are the broker's errors that concern a message or its topic.
var refusals = []error{
	kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation,
	kerr.CorruptMessage, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType,
	kerr.InvalidTopicException, kerr.TopicAuthorizationFailed,
	kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, // the client has retried
}

// noPartition is in the client's error for a partition that the topic does not have.
const noPartition = "invalid record partitioning choice"

// refused reports whether an error concerns the message, and not an unreachable broker. All other
// errors of the client count as an unreachable broker, because a dialer or SASL can return any
// error.
func refused(err error) bool {
	if broker := (*kerr.Error)(nil); errors.As(err, &broker) {
		return slices.ContainsFunc(refusals, func(target error) bool { return errors.Is(err, target) })
	}
	return strings.Contains(err.Error(), noPartition)
}
