package telemetry_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/telemetry"
)

func Example() {
	registry := prometheus.NewRegistry()
	obs, err := telemetry.New(telemetry.Options{Registerer: registry, Namespace: "im2be"})
	if err != nil {
		log.Fatal(err)
	}
	defer obs.Close()

	store := storetest.NewMem(storage.Identity{}) // a program opens engine/pebble or engine/bolt here
	eng, err := engine.Open(store, engine.Options{Observer: obs})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	defer obs.Watch(eng)()

	ev := engine.Event{
		Scope: "billing", ID: []byte("order-1"), Time: time.Now(),
		Origin: engine.Origin{Topic: "orders", Partition: 3, Offset: 7},
	}
	for range 3 {
		if _, err := eng.TryClaim(context.Background(), ev); err != nil {
			log.Fatal(err)
		}
	}

	families, err := registry.Gather() // a program serves the registry with promhttp.HandlerFor
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range families {
		switch family.GetName() {
		case "im2be_dedup_claims_total":
			for _, m := range family.GetMetric() {
				if n := m.GetCounter().GetValue(); n > 0 {
					fmt.Println(m.GetLabel()[0].GetValue(), m.GetLabel()[1].GetValue(), n)
				}
			}
		case "im2be_dedup_engine_stopped":
			fmt.Println("stopped:", family.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output:
	// billing claimed 1
	// billing duplicate 2
	// stopped: 0
}
