package bench

import "testing"

func TestDefaultsAreThoseOfTheFlags(t *testing.T) {
	kafka := KafkaOptions{Kills: 3}
	if err := kafka.complete(); err != nil {
		t.Fatal(err)
	}
	if kafka.N != 1_000_000 || kafka.Mode != Work || kafka.Kills != 3 || kafka.Dup != 0 || kafka.Workload.Handler != NoopHandler || kafka.Workload.Accounts != 50 {
		t.Errorf("%+v", kafka)
	}
	kill := KillOptions{}
	if setDefaults(&kill); kill.Kills != 20 || kill.Mode != Own || kill.fault != "" {
		t.Errorf("%+v", kill)
	}
	replay := ReplayOptions{}
	setDefaults(&replay)
	if replay.Scope != DefaultScope || replay.Batch != 1000 || replay.KeepWeeks != 0 || replay.Store != Pebble {
		t.Errorf("%+v", replay)
	}
}
