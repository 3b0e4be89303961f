package kafkaadapter

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table of states in docs/architecture.md matches the code.
func TestDocumentedStatesMatchTheCode(t *testing.T) {
	source, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z]\w+) {2,}(\w+(?: \w+)*) {2,}\S`).FindAllStringSubmatch(string(source), -1) {
		if slices.Contains(stateNames[:], m[1]) {
			drawn[m[1]] = m[2]
		}
	}
	for from, tt := range transitions {
		var next []string
		for _, s := range tt.next {
			next = append(next, s.String())
		}
		if got, want := drawn[state(from).String()], strings.Join(next, " "); got != want {
			t.Errorf("the page has %v -> %q, the code has %q", state(from), got, want)
		}
	}
	if len(drawn) != len(transitions) {
		t.Errorf("the page has %d states: %v", len(drawn), drawn)
	}
}

// Each state but the last can be left in order, and each can be reached.
func TestEveryStateIsReachedAndLeft(t *testing.T) {
	reached := map[state]bool{lookingUp: true}
	for from, tt := range transitions {
		if !slices.Contains(tt.next, ended) {
			t.Errorf("%v does not end with the assignment", state(from))
		}
		for _, s := range tt.next {
			reached[s] = true
		}
	}
	if len(reached) != int(stateCount) {
		t.Errorf("reached are %v", reached)
	}
}
