package sidecar

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

var someIdentity = storage.Identity{
	UUID:        [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	Incarnation: 0x1112131415161718,
	Seed:        0x2122232425262728,
}

// The golden identities are forever: if this build cannot read an identity file, the store is lost.
// Each is written by this build.
var goldenIdentities = []struct {
	kind  Kind
	bytes string
}{
	{Pebble, "48415041582d4944" + // HAPAX-ID
		"00000001" + "70" + // format 1, pebble
		"000102030405060708090a0b0c0d0e0f" + "1112131415161718" + "2122232425262728" +
		"115a466b"}, // CRC-32C
	{Bolt, "48415041582d4944" +
		"00000001" + "62" + // format 1, bolt
		"000102030405060708090a0b0c0d0e0f" + "1112131415161718" + "2122232425262728" +
		"14e70ff0"},
}

// golden is Pebble's identity.
func golden(t testing.TB) []byte {
	t.Helper()
	return unhex(t, goldenIdentities[0].bytes)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestIdentityHasItsGoldenBytes(t *testing.T) {
	for _, g := range goldenIdentities {
		want := unhex(t, g.bytes)
		if got, err := decodeIdentity(want, g.kind); err != nil || got != someIdentity {
			t.Errorf("%s: %v, %v", g.bytes, got, err)
		}
		if got := encodeIdentity(g.kind, someIdentity); !bytes.Equal(got, want) {
			t.Errorf("%s: %x", g.kind.Name, got)
		}
	}
}

// A format that only the other kind of store has is a newer one.
func TestAFormatOfTheOtherKindIsNewer(t *testing.T) {
	b := golden(t)[:identitySize]
	b[12] = Bolt.Letter
	binary.BigEndian.PutUint32(b[8:], Bolt.Format+1)
	if _, err := decodeIdentity(Seal(b), Bolt); !errors.Is(err, storage.ErrNewerFormat) {
		t.Fatal(err)
	}
	if _, err := decodeIdentity(golden(t), Bolt); !errors.Is(err, storage.ErrForeign) {
		t.Fatal("another kind:", err)
	}
}

func TestIdentityIsReadBack(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadIdentity(OS{}, dir, Bolt); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := WriteIdentity(OS{}, dir, Bolt, someIdentity); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadIdentity(OS{}, dir, Bolt); err != nil || got != someIdentity {
		t.Fatal(got, err)
	}
	if _, err := ReadIdentity(OS{}, dir, Pebble); !errors.Is(err, storage.ErrForeign) {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, IdentityName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
}

func TestEveryFlippedBitOfAnIdentityIsDamage(t *testing.T) {
	for i := range 8 * len(golden(t)) {
		b := golden(t)
		b[i/8] ^= 1 << (i % 8)
		if _, err := decodeIdentity(b, Pebble); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("bit %d: %v", i, err)
		}
	}
	for n := range golden(t) {
		if _, err := decodeIdentity(golden(t)[:n], Pebble); !errors.Is(err, storage.ErrDamaged) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func TestWholeButForeignIdentitiesAreDistinguished(t *testing.T) {
	whole := golden(t)[:identitySize]
	change := func(fn func(b []byte) []byte) []byte { return Seal(fn(bytes.Clone(whole))) }
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"newer, with more in it", change(func(b []byte) []byte {
			binary.BigEndian.PutUint32(b[8:], Pebble.Format+1)
			return append(b, "what a later build adds"...)
		}), storage.ErrNewerFormat},
		{"another magic", change(func(b []byte) []byte { b[0] = 'X'; return b }), storage.ErrForeign},
		{"too short", Seal([]byte("HAPAX-ID")), storage.ErrForeign},
		{"format 0", change(func(b []byte) []byte { binary.BigEndian.PutUint32(b[8:], 0); return b }), storage.ErrDamaged},
		{"of a build before the first release", change(func(b []byte) []byte { copy(b, devMagic); return b }), storage.ErrForeign},
		{"too long for its format", change(func(b []byte) []byte { return append(b, 0) }), storage.ErrDamaged},
		{"an unknown kind", change(func(b []byte) []byte { b[12] = 'z'; return b }), storage.ErrForeign},
	} {
		if _, err := decodeIdentity(c.b, Pebble); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add(golden(f), true)
	f.Add(golden(f)[:identitySize], true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal {
			b = Seal(bytes.Clone(b))
		}
		id, err := decodeIdentity(b, Pebble)
		switch {
		case err == nil:
			want := encodeIdentity(Pebble, id)[:identitySize]
			copy(want[8:12], b[8:12]) // an older format differs in nothing else
			if want = Seal(want); !bytes.Equal(want, b) {
				t.Fatalf("%x is not the encoding of %v", b, id)
			}
		case id != storage.Identity{}:
			t.Fatal("an identity and an error")
		case !errors.Is(err, storage.ErrDamaged) && !errors.Is(err, storage.ErrForeign) && !errors.Is(err, storage.ErrNewerFormat):
			t.Fatal("an untyped error:", err)
		}
	})
}

func TestStoreOfAnotherModuleHasItsOwnKind(t *testing.T) {
	dir, kind := t.TempDir(), Kind{Letter: 'L', Name: "log", Format: 3}
	if err := WriteIdentity(OS{}, dir, kind, someIdentity); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadIdentity(OS{}, dir, kind); err != nil || got != someIdentity {
		t.Fatal(got, err)
	}
	if _, err := ReadIdentity(OS{}, dir, Pebble); !errors.Is(err, storage.ErrForeign) {
		t.Errorf("as a Pebble store: %v", err)
	}
	kind.Format = 2
	if _, err := ReadIdentity(OS{}, dir, kind); !errors.Is(err, storage.ErrNewerFormat) {
		t.Errorf("by an older build: %v", err)
	}
}
