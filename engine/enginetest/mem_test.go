package enginetest

import (
	"testing"

	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestEngineOnMemAgreesWithMaps(t *testing.T) { RunModel(t, storetest.NewDisk().Harness()) }

func TestAddsOnMemComeToTheirSum(t *testing.T) { RunAdds(t, storetest.NewDisk().Harness()) }

func TestScopesAreDroppedOnMem(t *testing.T) { RunScopeDrops(t, storetest.NewDisk().Harness()) }
