package replica

import (
	"errors"
	"fmt"
)

// Errors of a Store, of Open and of Follow, wrapped: test them with errors.Is.
var (
	// ErrChangelogDamaged means that records of the log are missing, out of order or unreadable, or
	// that its beginning was removed. Nothing was appended.
	ErrChangelogDamaged = errors.New("hapax: the changelog is damaged: restore the topic, or delete it with the group's offsets and decide which events to process again; look for retention, compaction or a foreign writer as the cause")

	// ErrChangelogLost means that the log has lost records that it had acknowledged: the local copy, or
	// the owner, has a batch that the log does not have.
	ErrChangelogLost = errors.New("hapax: the changelog has lost acknowledged records: do not delete the local copy, which has them; look for an unclean leader election, and restore the topic, or remove the copy to accept the loss")

	// ErrFenced means that another member has opened the log: this one is not its owner any more.
	ErrFenced = errors.New("hapax: another member has opened the changelog: close the engine, and open the partition again if it is still assigned")

	// ErrUnknownOutcome means that it is not known whether a record is in the log. Nothing more is
	// appended: close the engine and open the log again, which shows it.
	ErrUnknownOutcome = errors.New("hapax: it is unknown whether the changelog has the batch: close the engine and open the partition again")

	// ErrRevoked means that Revoke has ended the ownership.
	ErrRevoked = errors.New("hapax: the partition was revoked")

	// ErrOutOfRange is returned by a Log: the offset at which reading was to begin, or to continue, is
	// before the first record or after the last one.
	ErrOutOfRange = errors.New("hapax: the offset is not in the changelog")
)

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrChangelogDamaged, fmt.Errorf(format, args...))
}

func lost(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrChangelogLost, fmt.Errorf(format, args...))
}
