package replica_test

import (
	"testing"

	"github.com/hapax-dev/hapax/engine/enginetest"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, memSites().harness()) }

func TestEngineOnAReplicaAgreesWithMaps(t *testing.T) { enginetest.RunModel(t, memSites().harness()) }

func TestAddsOnAReplicaComeToTheirSum(t *testing.T) { enginetest.RunAdds(t, memSites().harness()) }
