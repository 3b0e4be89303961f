package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// What a window costs an at-most-once claim, in batches of 1000 of which a twentieth are repeats,
// and how many results of 1 KiB are kept in transactions of 1000.
func BenchmarkWindowsAndResults(b *testing.B) {
	for _, c := range []struct {
		name    string
		window  time.Duration
		arrives bool
	}{{"plain", 0, false}, {"24h", 24 * time.Hour, false}, {"24h by arrival", 24 * time.Hour, true}, {"30 days by arrival", 30 * 24 * time.Hour, true}} {
		b.Run(c.name, func(b *testing.B) {
			e := benchEngine(b)
			events, n := make([]engine.Event, 1000), uint64(0)
			for b.Loop() {
				for i := range events {
					if i%20 > 0 {
						n++
					}
					events[i] = benchEvent(n)
					if events[i].Window = c.window; c.arrives {
						events[i].Time = time.Time{}
					}
				}
				if _, err := e.TryClaimBatch(context.Background(), events); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "claims/s")
		})
	}
	b.Run("results", func(b *testing.B) {
		e, data, n := benchEngine(b), make([]byte, 1<<10), uint64(0)
		for b.Loop() {
			err := e.Update(context.Background(), func(tx *engine.Tx) error {
				for range 1000 {
					n++
					ev := benchEvent(n)
					if _, err := tx.TryClaim(ev); err != nil {
						return err
					}
					if err := tx.SetData(ev, data); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "results/s")
	})
}

func benchEvent(n uint64) engine.Event {
	return engine.Event{Scope: "bench", ID: binary.BigEndian.AppendUint64(nil, n), Time: time.Now(), Origin: engine.Origin{Topic: "t", Offset: int64(n)}}
}

func benchEngine(b *testing.B) *engine.Engine {
	s, err := Open(filepath.Join(b.TempDir(), "store"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	e, err := engine.Open(s, engine.Options{RetentionWeeks: 5})
	if err != nil {
		b.Fatal(errors.Join(err, s.Close()))
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	return e
}
