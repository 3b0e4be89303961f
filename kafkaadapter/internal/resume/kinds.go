package resume

import "errors"

// The kinds of disagreement between the offsets of a partition. The errors of package kafkaadapter with
// these names document them.
var (
	ErrBelowLog          = errors.New("hapax: records were removed before they were read")
	ErrAboveLog          = errors.New("hapax: the store's offset is past the end of the log: the broker lost records, or the log is a different one")
	ErrRecreated         = errors.New("hapax: the topic was deleted and created again after the store read it")
	ErrForeignStore      = errors.New("hapax: another store processed the partition: members of a group that exchange partitions must share one store")
	ErrEmptyStore        = errors.New("hapax: the group has committed offsets, but the store has no offset of the partition: mount the right volume or restore a backup")
	ErrKafkaAhead        = errors.New("hapax: Kafka's committed offset is ahead of the store that committed it: the store lost its newest data")
	ErrOffsetReset       = errors.New("hapax: the group's committed offset was moved by another client")
	ErrLogDiverged       = errors.New("hapax: the log differs from the one that was read (unclean leader election)")
	ErrModeChanged       = errors.New("hapax: the mode was changed to Transactional before AtMostOnce had handled all claimed records: run with AtMostOnce until they are handled")
	ErrPartitionsChanged = errors.New("hapax: the number of partitions of a topic has changed, so copies of an event may reach a store that lacks its claim: " +
		"if the partition of an event depends on that number, move to a new topic with new stores, as the documentation of ErrPartitionsChanged says; otherwise accept the number")

	// ErrRanOpen means that records up to Kafka's offset were handled without claims: reading continues
	// there, without a policy.
	ErrRanOpen = errors.New("hapax: the partition was read without the store")
)
