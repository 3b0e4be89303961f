package changelog

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Errors of Prepare and of a Log, wrapped: test them with errors.Is.
var (
	// ErrOption is returned by New for options that cannot be used.
	ErrOption = errors.New("hapax: option of the changelog refused")

	// ErrNoTopic means that the topic does not exist, and is not to be created.
	ErrNoTopic = errors.New("hapax: the changelog's topic does not exist: create it, or set Replication so that it is created")

	// ErrPartitions means that the topic has another number of partitions than the source topic.
	// More partitions of the changelog alone do not end the stop: see kafkaadapter.ErrPartitionsChanged.
	ErrPartitions = errors.New("hapax: the changelog has another number of partitions than its source topic: if partitions were added to the source, copies of an earlier event may reach one that lacks its claim; " +
		"move to a new source topic with another group, or, if the partition of an event does not depend on their number or copies may be handled again, add as many to the changelog and accept the number with kafkaadapter.Recovery[ErrPartitionsChanged] = TrustStore")

	// ErrSetting means that the topic or the cluster has a setting with which the changelog would lose records,
	// or reject them.
	ErrSetting = errors.New("hapax: the changelog's topic has a setting that it must not have: change it with kafka-configs.sh --alter")

	// ErrPermission means that the application lacks a right.
	ErrPermission = errors.New("hapax: a right on the changelog's topic is missing: grant it with kafka-acls.sh --add")

	// ErrRecreated means that the topic was deleted and created again while it was used.
	ErrRecreated = errors.New("hapax: the changelog's topic was deleted and created again: open the partition again")

	// ErrLossDetected means that a broker does not have records that the producer of this process has written
	// earlier. All logs of the process get this error from their next append: open their partitions again, with
	// new Logs.
	ErrLossDetected = errors.New("hapax: the broker has lost records of the changelog that this process has appended: open the partition again; look for an unclean leader election, or a broker whose disk or memory was lost")

	// ErrTooLarge means that the topic or the cluster does not accept a record of this size.
	ErrTooLarge = errors.New("hapax: a record of the changelog is too large: raise max.message.bytes of its topic, or lower PartBytes")

	// ErrClosed means that the Client is closed.
	ErrClosed = errors.New("hapax: the client of the changelog is closed")
)

// explain adds what an error of Kafka means for the changelog. It is permanent if another try
// cannot help.
func explain(err error) (permanent bool, explained error) {
	for _, ours := range []error{ErrPermission, ErrSetting, ErrPartitions, ErrRecreated, ErrLossDetected, ErrClosed} {
		if errors.Is(err, ours) {
			return true, err
		}
	}
	for _, k := range []struct{ kafka, ours error }{
		{kerr.TopicAuthorizationFailed, ErrPermission},
		{kerr.ClusterAuthorizationFailed, ErrPermission},
		{kerr.UnknownTopicOrPartition, ErrNoTopic},
		{kerr.UnknownTopicID, ErrRecreated},
		{kerr.MessageTooLarge, ErrTooLarge},
		{kerr.RecordListTooLarge, ErrTooLarge},
		{kgo.ErrClientClosed, ErrClosed},
	} {
		if errors.Is(err, k.kafka) {
			return true, fmt.Errorf("%w: %w", k.ours, err)
		}
	}
	for _, final := range []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedVersion, kerr.InvalidTopicException} {
		if errors.Is(err, final) {
			return true, err
		}
	}
	return false, err
}
