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
	} {
		value, tie := c.row.encode(clock)
		key := appendSuffix(table.rowPrefix(c.row.Tenant, c.row.Key), c.row.Version, tie)
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
	} {
		value, tie := r.encode(clock)
		f.Add(appendSuffix(table.rowPrefix(r.Tenant, r.Key), r.Version, tie), value)
	}
	f.Add(appendSuffix(table.rowPrefix("a", []byte("k")), 3, tieErasure), []byte{kindErasure})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, err := table.decode(key, value)
		if err != nil {
			if !errors.Is(err, storage.ErrDamaged) {
				t.Error(err)
			}
			return
		}
		_, _, tie, err := split(key)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(appendSuffix(table.rowPrefix(r.Tenant, r.Key), r.Version, tie), key) {
			t.Errorf("%x is %+v", key, r)
		}
	})
}
