package sidecar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"

	"github.com/hapax-dev/hapax/engine/storage"
)

// IdentityName is the file that makes a directory a store. It is written last when a store is
// created and read first when one is opened:
//
//	+----------+-----------+------+------+-------------+--------+--------+
//	| HAPAX-ID | format u32| kind | uuid | incarnation | seed   | CRC-32C|
//	| 8        | 4         | 1    | 16   | 8           | 8      | 4      |
//	+----------+-----------+------+------+-------------+--------+--------+
//
// Numbers are big endian. Later formats add fields between seed and checksum: magic, format and the
// checksum at the end keep their places, so that an older build can distinguish a newer store from
// a damaged one.
const IdentityName = "HAPAX"

const (
	magic        = "HAPAX-ID"
	devMagic     = "HAPAXSTO" // magic of builds before the first release, whose formats are not read
	identitySize = 8 + 4 + 1 + 16 + 8 + 8
)

// A Kind says which store wrote a directory.
type Kind struct {
	// Letter is stored and must not change. Stores of other modules must choose a letter that is
	// not used below.
	Letter byte
	// Name is used in errors.
	Name string
	// Format is the store format that this build writes, and the newest one that it reads. It is at
	// least 1.
	Format uint32
}

// The stores of this module.
var (
	Pebble = Kind{'p', "pebble", 1}
	Bolt   = Kind{'b', "bolt", 1}
)

// Copy returns the kind of a copy, which may lack the newest batches because they are in a log as well
// (package replica). It is another kind, so that neither is opened as the other: a store of its own would
// be replaced, and a copy would answer without the claims that it has lost.
func (k Kind) Copy() Kind {
	k.Letter -= 'a' - 'A'
	k.Name = "replica's " + k.Name
	return k
}

// known returns the kind with the letter. The kind of an unknown letter has every format, because
// the store is of another kind.
func known(letter byte, asked Kind) Kind {
	for _, k := range [...]Kind{asked, Pebble, Bolt, Pebble.Copy(), Bolt.Copy()} {
		if k.Letter == letter {
			return k
		}
	}
	return Kind{letter, fmt.Sprintf("kind(%#x)", letter), math.MaxUint32}
}

// WriteIdentity makes dir a store of the given kind, durably.
func WriteIdentity(fsys FS, dir string, kind Kind, id storage.Identity) error {
	return Write(fsys, dir, IdentityName, func(w io.Writer) error {
		_, err := w.Write(encodeIdentity(kind, id))
		return err
	})
}

// ReadIdentity reads the file that WriteIdentity wrote. It returns fs.ErrNotExist if dir contains
// no store, storage.ErrNewerFormat if a newer build wrote it, storage.ErrForeign if it is a store
// of another kind, and storage.ErrDamaged if it is invalid. It changes nothing.
func ReadIdentity(fsys FS, dir string, kind Kind) (storage.Identity, error) {
	b, err := fsys.ReadFile(filepath.Join(dir, IdentityName))
	if errors.Is(err, fs.ErrNotExist) {
		return storage.Identity{}, err
	}
	if err != nil {
		return storage.Identity{}, fmt.Errorf("hapax: reading %s: %w", IdentityName, err)
	}
	id, err := decodeIdentity(b, kind)
	if err != nil {
		return storage.Identity{}, fmt.Errorf("hapax: %s in %s: %w", IdentityName, dir, err)
	}
	return id, nil
}

// ReadKind returns the kind of the store in dir, fs.ErrNotExist if there is none, and
// storage.ErrForeign if it is unknown. It does not read the rest of the identity.
func ReadKind(fsys FS, dir string) (Kind, error) {
	b, err := fsys.ReadFile(filepath.Join(dir, IdentityName))
	if err != nil {
		return Kind{}, err
	}
	if len(b) >= identitySize && string(b[:8]) == magic {
		for _, k := range [...]Kind{Pebble, Bolt, Pebble.Copy(), Bolt.Copy()} {
			if k.Letter == b[12] {
				return k, nil
			}
		}
	}
	return Kind{}, fmt.Errorf("hapax: %s in %s: %w", IdentityName, dir, storage.ErrForeign)
}

// ReadFormat returns the format of a store that ReadIdentity accepts.
func ReadFormat(fsys FS, dir string) (uint32, error) {
	b, err := fsys.ReadFile(filepath.Join(dir, IdentityName))
	if err != nil {
		return 0, fmt.Errorf("hapax: reading %s: %w", IdentityName, err)
	}
	if len(b) < identitySize {
		return 0, fmt.Errorf("hapax: %s in %s: %w", IdentityName, dir, storage.ErrDamaged)
	}
	return binary.BigEndian.Uint32(b[8:]), nil
}

func encodeIdentity(kind Kind, id storage.Identity) []byte {
	b := make([]byte, 0, identitySize+4)
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint32(b, kind.Format)
	b = append(b, kind.Letter)
	b = append(b, id.UUID[:]...)
	b = binary.BigEndian.AppendUint64(b, id.Incarnation)
	b = binary.BigEndian.AppendUint64(b, id.Seed)
	return Seal(b)
}

func decodeIdentity(b []byte, kind Kind) (storage.Identity, error) {
	body, err := Unseal(b)
	if err != nil {
		return storage.Identity{}, fmt.Errorf("%w: %w", storage.ErrDamaged, err)
	}
	if len(body) >= 8 && string(body[:8]) == devMagic {
		return storage.Identity{}, fmt.Errorf("%w: a build before the first release wrote it, whose format is not read: give an empty directory, "+
			"and start consumers at an offset from which events may be processed again; or continue with the build that wrote it", storage.ErrForeign)
	}
	if len(body) < identitySize || string(body[:8]) != magic {
		return storage.Identity{}, storage.ErrForeign
	}
	format, got := binary.BigEndian.Uint32(body[8:]), known(body[12], kind)
	foreign := fmt.Errorf("%w: it is a %s store, not %s", storage.ErrForeign, got.Name, kind.Name)
	switch {
	case got.Letter != kind.Letter && len(body) == identitySize && format > 0 && format <= got.Format:
		return storage.Identity{}, foreign
	case format > kind.Format: // the other fields may have any meaning
		return storage.Identity{}, fmt.Errorf("%w: format %d, this build reads up to %d", storage.ErrNewerFormat, format, kind.Format)
	case format == 0 || len(body) != identitySize:
		return storage.Identity{}, fmt.Errorf("%w: format %d with %d bytes", storage.ErrDamaged, format, len(body))
	case got.Letter != kind.Letter:
		return storage.Identity{}, foreign
	}
	id := storage.Identity{
		Incarnation: binary.BigEndian.Uint64(body[29:]),
		Seed:        binary.BigEndian.Uint64(body[37:]),
	}
	copy(id.UUID[:], body[13:29])
	return id, nil
}
