package storetest

import "testing"

// Run checks that the store that h opens fulfils the contract of [storage.Store]. The name of each
// subtest is the fact that it checks. The random run takes its seed from -rapid.seed and prints it
// when it fails; the other subtests are not random.
func Run(t *testing.T, h Harness) {
	h = h.withDefaults()
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(newEnv(t, h)) })
	}
}

var checks = []struct {
	name string
	run  func(e *env)
}{
	// Batches and the reads that find them.
	{"AppliedBatchIsVisibleWholeToLaterReads", appliedBatchIsVisible},
	{"LaterWriteInABatchWins", laterWriteWins},
	{"NilValueRemoves", nilValueRemoves},
	{"EmptyValueIsNotAbsent", emptyValueIsNotAbsent},
	{"FullKeyCompare", fullKeyCompare},
	{"ClaimsAndStateAreApart", claimsAndStateAreApart},
	{"LargeKeysAndValues", largeKeysAndValues},
	{"ApplyKeepsNoReferenceToTheBatch", applyKeepsNoReference},
	{"ReadsReturnCopies", readsReturnCopies},
	{"StatePrefixScan", statePrefixScan},
	{"StateScanSeesOneMoment", stateScanSeesOneMoment},
	{"BucketsInKeyOrder", bucketsInKeyOrder},
	{"BucketsCostsNoScanOfTheClaims", bucketsCostsNoScan},
	{"ScanInKeyOrder", scanInKeyOrder},
	{"ScanOfASpan", scanOfASpan},
	{"ScanSeesOneMoment", scanSeesOneMoment},
	{"ScanStopsWithContext", scanStopsWithContext},
	{"ConcurrentReadsWhileApplying", concurrentReads},

	// Contents after a close and after a crash.
	{"ReopenFindsEverythingWaitedFor", reopenFindsEverything},
	{"IdentitySurvivesReopen", identitySurvivesReopen},
	{"LastSeqIsWhatOpenFound", lastSeqIsWhatOpenFound},
	{"WaitInOrder", waitInOrder},
	{"WaitedForSurvivesACrash", waitedForSurvives},
	{"WaitForAnEmptyBatchIsDurable", emptyBatchIsDurable},
	{"CrashKeepsAPrefixOfBatches", crashKeepsAPrefix},
	{"WhatOpenFoundIsDurable", whatOpenFoundIsDurable},
	{"LostBatchNumbersAreUsedAgain", lostNumbersAreUsedAgain},
	{"CrashAtAnyMomentKeepsWhatWasConfirmed", crashAtAnyMoment},

	// The journal.
	{"JournalFromInOrderWithEmptyEntries", journalFrom},
	{"TrimJournalForgetsWhatIsBelow", trimForgets},
	{"TrimJournalIsNotTakenBackByASmallerNumber", trimIsNotTakenBack},
	{"TrimJournalKeepsLastSeq", trimKeepsLastSeq},

	// Dropping buckets.
	{"DropRemovesExactlyTheBuckets", dropRemovesExactly},
	{"DropOfScopesThatBeginAlike", dropOfScopesThatBeginAlike},
	{"DropIsDurable", dropIsDurable},
	{"DropIsNotUndoneByAnUnsyncedBatch", dropIsNotUndone},
	{"DropTwiceIsHarmless", dropTwice},
	{"CrashWithinADropLeavesEachClaimOrNot", crashWithinADrop},
	{"ApplyDuringDrop", applyDuringDrop},
	{"EverythingBesideMaintenance", everythingBesideMaintenance},
	{"ReclaimReturns", reclaimReturns},
	{"ReclaimStopsWithContext", reclaimStopsWithContext},
	{"ReclaimStateReturns", reclaimStateReturns},
	{"ReclaimStateStopsWithContext", reclaimStateStopsWithContext},
	{"UsageFollowsWhatIsWritten", usageFollows},
	{"BucketBytesTellsFullFromEmpty", bucketBytes},

	// Sidecars, backups, verification.
	{"SidecarReplacedWhole", sidecarReplaced},
	{"SidecarSurvivesACrash", sidecarSurvives},
	{"SidecarHalfWrittenAtACrashIsTheOldOne", sidecarHalfWritten},
	{"SidecarThatFailsLeavesTheOldOne", sidecarThatFails},
	{"SidecarWithoutRoomLeavesTheOldOneAndTheStore", sidecarWithoutRoom},
	{"SidecarsWrittenAtOnceStayWhole", sidecarsWrittenAtOnce},
	{"SidecarNamesDoNotTouchTheStore", sidecarNames},
	{"ReadSidecarAbsentIsErrNotExist", sidecarAbsent},
	{"BackupOpensWithHigherIncarnationAndSameUUID", backupOpens},
	{"BackupAndOriginalGoTheirOwnWays", backupIsApart},
	{"BackupDuringApply", backupDuringApply},
	{"BackupRefusesADirectoryThatExists", backupRefusesExisting},
	{"BackupStopsWithContext", backupStopsWithContext},
	{"VerifyOfAHealthyStoreReportsNothing", verifyHealthy},

	// Opening, closing, failing.
	{"SecondOpenIsErrLocked", secondOpenIsErrLocked},
	{"OneEngineUsesAStore", oneEngineUsesAStore},
	{"SecondCloseIsHarmless", secondCloseIsHarmless},
	{"CloseLeavesNoGoroutine", closeLeavesNoGoroutine},
	{"NewStoresAreDistinct", newStoresAreDistinct},
	{"NewerFormatIsRefusedUntouched", newerFormatIsRefused},
	{"FailedWriteConfirmsNothing", failedWriteConfirmsNothing},
	{"PoisonedStoreRefusesToWrite", poisonedStoreRefuses},
	{"PoisonedStoreCloses", poisonedStoreCloses},

	{"RandomRunAgreesWithAMap", randomRun},
}
