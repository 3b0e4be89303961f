package versions

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// These bytes are stored forever.
func TestGoldenRows(t *testing.T) {
	table := &Table{prefix: appendPart(nil, "t")}
	now := time.UnixMicro(1700000000000000).UTC()
	clock := func() time.Time { return now }
	for _, c := range []struct {
		row        Row
		key, value string
	}{
		{Row{Tenant: "a", Key: []byte("k\x00"), Version: 1, Payload: []byte("p")}, "7400016100016b00ff0001fffffffffffffffefbcd67bf65704162", "7270"},
		{Row{Tenant: "a", Key: []byte("k"), Version: 1 << 63, Time: now, Payload: []byte("p")}, "7400016100016b00017fffffffffffffffeea2c3a44a86089b", "748080f2818389850670"},
		{Row{Tenant: "a", Key: []byte("k"), Version: AllVersions, Deleted: true}, "7400016100016b000100000000000000000000000000000001", "648080f28183898506"},
		{Row{Tenant: "a", Key: []byte("k"), Version: 1, Offset: 2, Time: now, Payload: []byte("p"), Partial: true}, "7400016100016b0001fffffffffffffffe000000000000000036261df6707352440000000000000002", "718080f2818389850670"},
		{Row{Tenant: "a", Key: []byte("k"), Version: 1, Offset: 258, Payload: []byte("p"), Partial: true}, "7400016100016b0001fffffffffffffffe000000000000000062d2aba47189025e0000000000000102", "7070"},
		{Row{Tenant: "a", Key: []byte("k"), Version: 1, Offset: 1, Deleted: true}, "7400016100016b0001fffffffffffffffe000000000000000000000000000000010000000000000001", "648080f28183898506"},
	} {
		value, tie := c.row.encode(clock)
		key := place{table.rowPrefix(c.row.Tenant, c.row.Key), c.row.Version, tie, c.row.Offset}.key()
		if hex.EncodeToString(key) != c.key || hex.EncodeToString(value) != c.value {
			t.Errorf("%+v is %x = %x, want %s = %s", c.row, key, value, c.key, c.value)
		}
	}
}

// A decoded key and value encode to the same bytes, and damage is an error.
func FuzzDecode(f *testing.F) {
	table := &Table{prefix: appendPart(nil, "t")}
	now := time.UnixMicro(1700000000000000).UTC()
	clock := func() time.Time { return now }
	for _, r := range []Row{
		{Tenant: "a", Key: []byte("k\x00"), Version: 1, Payload: []byte("p")},
		{Tenant: "a", Key: []byte("k"), Version: 7, Time: now, Payload: []byte("p")},
		{Tenant: "a", Key: []byte("k"), Version: AllVersions, Deleted: true},
		{Tenant: "a", Key: []byte("k"), Version: 7, Offset: 9, Time: now, Payload: []byte("p"), Partial: true},
	} {
		value, tie := r.encode(clock)
		f.Add(place{table.rowPrefix(r.Tenant, r.Key), r.Version, tie, r.Offset}.key(), value)
	}
	f.Add(appendSuffix(table.rowPrefix("a", []byte("k")), 3, tieErasure), []byte{kindErasure})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		p, err := table.place(key)
		var r Row
		if err == nil {
			r, err = table.decode(p, value)
		}
		if err != nil {
			if !errors.Is(err, storage.ErrDamaged) {
				t.Error(err)
			}
			return
		}
		if again := (place{table.rowPrefix(r.Tenant, r.Key), r.Version, p.tie, r.Offset}); !bytes.Equal(again.key(), key) {
			t.Errorf("%x is %+v", key, r)
		}
	})
}
