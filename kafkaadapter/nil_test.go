package kafkaadapter

import (
	"errors"
	"strings"
	"testing"
)

func TestANilEngineIsRefused(t *testing.T) {
	_, errNew := New(nil, someOptions())
	_, errNames := HoldNames(t.Context(), nil, "g")
	_, errPlan := PlanGroupDrop(t.Context(), nil, "g")
	errDrop := DropGroup(t.Context(), nil, GroupDropPlan{})
	for _, err := range []error{errNew, errNames, errPlan, errDrop} {
		if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "engine.Open") {
			t.Errorf("got %v", err)
		}
	}
}
