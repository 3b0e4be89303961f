package kafkatest

import (
	"strings"
	"testing"
	"time"
)

func lingering(c chan struct{}) {
	c <- struct{}{} // it runs
	<-c
}

func TestGoroutineThatRemainsIsDetected(t *testing.T) {
	before, c := make(chan struct{}), make(chan struct{})
	go lingering(before)
	<-before
	earlier := make(map[string]bool)
	for _, stack := range stacks() {
		earlier[number(stack)] = true
	}
	go lingering(c)
	<-c
	parts := []string{"no such part", "kafkatest.lingering"}
	if left := leftOver(time.Millisecond, earlier, parts); len(left) != 1 || !strings.Contains(left[0], "lingering") {
		t.Errorf("left: %q", left)
	}
	if left := leftOver(time.Millisecond, nil, parts); len(left) != 2 {
		t.Errorf("left, if none is earlier: %q", left)
	}
	close(c)
	if left := leftOver(patience, earlier, parts); len(left) != 0 {
		t.Errorf("none is left: %q", left)
	}
	close(before)
}
