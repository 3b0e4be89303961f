package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
)

func statePrefixScan(e *env) {
	keys := []string{"a", "a\x00", "a/1", "a/2", "a/2/x", "a0", "b", "b\xff", "b\xff\xff", "b\xff\xff\x00", "c", "\xff", "\xff\xff", "\xff\xff\x01", "\x00"}
	for i, k := range keys {
		if i == len(keys)/2 {
			e.settle()
		}
		e.state(set(k, "value of "+k))
	}
	e.inEveryForm(func() {
		e.Helper()
		for _, prefix := range []string{"", "a", "a/", "a/2", "a/2/x", "a/2/xy", "b\xff", "b\xff\xff", "\xff", "\xff\xff", "\xff\xff\xff", "\x00", "d"} {
			for _, from := range []string{"", "a", "a/1", "a/1\x00", "b\xff\x01", "\xff\xff", "\xff\xff\x02"} {
				var got, want []string
				span := storage.Span{Prefix: []byte(prefix), From: []byte(from)}
				err := e.s.ScanState(span, func(k, v []byte) error {
					if string(v) != "value of "+string(k) {
						e.Errorf("ScanState shows %q under %q", v, k)
					}
					got = append(got, string(k))
					return nil
				})
				for _, k := range keys {
					if strings.HasPrefix(k, prefix) && k >= from {
						want = append(want, k)
					}
				}
				slices.Sort(want)
				if err != nil || !slices.Equal(got, want) {
					e.Errorf("ScanState(%q) shows %q, %v, want %q", span, got, err, want)
				}
			}
		}
		calls := 0
		err := e.s.ScanState(storage.Span{Prefix: []byte("a")}, func(_, _ []byte) error {
			if calls++; calls == 2 {
				return errStop
			}
			return nil
		})
		if !errors.Is(err, errStop) || calls != 2 {
			e.Errorf("ScanState returned %v after %d calls, but the second call said %v", err, calls, errStop)
		}
	})
}

// stateScanSeesOneMoment changes every key while a scan of them is at its first one.
func stateScanSeesOneMoment(e *env) {
	const n = 300
	write := func(from, step int, value string) {
		var writes []storage.StateWrite
		for i := from; i < n; i += step {
			w := set(fmt.Sprintf("k%04d", i), value)
			if value == "" {
				w.Value = nil
			}
			writes = append(writes, w)
		}
		e.put(storage.Batch{State: writes})
	}
	write(0, 2, "first")
	for _, form := range []string{"while it is fresh", "while it is settled"} {
		before := e.told.view.clone()
		got := map[string][]byte{}
		err := e.s.ScanState(storage.Span{Prefix: []byte("k")}, func(k, v []byte) error {
			if len(got) == 0 {
				write(1, 2, "added")
				write(0, 4, "")
				write(2, 4, string(noise(1, 20_000)))
			}
			got[string(k)] = append([]byte{}, v...)
			return nil
		})
		if err != nil {
			e.Fatalf("ScanState: %v", err)
		}
		var d differences
		d.maps("state", got, before.state)
		if d.String() != "" {
			e.Fatalf("%s: the scan has not returned the state at its start: %s", form, d.String())
		}
		e.check("after the scan")
		e.settle()
	}
}
