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
	c := make(chan struct{})
	go lingering(c)
	<-c
	parts := []string{"no such part", "kafkatest.lingering"}
	if left := leftOver(time.Millisecond, parts); len(left) != 1 || !strings.Contains(left[0], "lingering") {
		t.Errorf("left: %q", left)
	}
	close(c)
	if left := leftOver(patience, parts); len(left) != 0 {
		t.Errorf("none is left: %q", left)
	}
}
