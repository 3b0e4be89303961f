package engine_test

import "github.com/hapax-dev/hapax/engine/storetest"

var allOps = []storetest.Op{
	storetest.OpApply, storetest.OpWait, storetest.OpClaim, storetest.OpState, storetest.OpScanState, storetest.OpBuckets,
	storetest.OpScan, storetest.OpJournal, storetest.OpTrimJournal, storetest.OpDrop, storetest.OpReclaim, storetest.OpUsage,
	storetest.OpBucketBytes, storetest.OpWriteSidecar, storetest.OpReadSidecar, storetest.OpBackup, storetest.OpVerify,
}
