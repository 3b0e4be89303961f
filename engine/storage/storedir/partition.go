package storedir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A Partition keeps the copy of one partition in a directory of its own. It implements storage.Copies.
type Partition struct {
	Root      string // of the directories of all partitions
	Topic     string
	Partition int32
	In        func(dir string) storage.Copies // the copy in a directory
}

// Names in the directory of a partition.
const (
	partitionName = "PARTITION" // the file that says whose directory it is
	copyName      = "copy"      // the directory of the copy
)

// Name returns the name of the partition's directory below Root. It is a valid name on all systems, also where
// upper and lower case are the same, whatever the topic is called: the hash distinguishes topics, and the
// letters before it are for readers.
func (p *Partition) Name() string {
	const readable = 64
	letters := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, p.Topic)
	hash := sha256.Sum256([]byte(p.Topic))
	return fmt.Sprintf("t-%s-%x-%d", letters[:min(len(letters), readable)], hash[:8], p.Partition)
}

// Open implements storage.Copies.
func (p *Partition) Open() (storage.Store, error) {
	c, err := p.copies()
	if err != nil {
		return nil, err
	}
	return c.Open()
}

// Create implements storage.Copies.
func (p *Partition) Create(id storage.Identity) (storage.Store, error) {
	c, err := p.copies()
	if err != nil {
		return nil, err
	}
	return c.Create(id)
}

// Remove implements storage.Copies.
func (p *Partition) Remove() error {
	c, err := p.copies()
	if err != nil {
		return err
	}
	return c.Remove()
}

// copies returns the copy, after it has made the directory of the partition if it is missing.
func (p *Partition) copies() (_ storage.Copies, err error) {
	d, err := Open(filepath.Join(p.Root, p.Name()))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	ours := fmt.Sprintf("partition %d of topic %q\n", p.Partition, p.Topic)
	switch found, err := d.ReadFile(partitionName); {
	case errors.Is(err, fs.ErrNotExist):
		err := sidecar.Write(d.FS(), d.Path(), partitionName, func(w io.Writer) error {
			_, err := io.WriteString(w, ours)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("hapax: creating the directory of a partition: %w", err)
		}
	case err != nil:
		return nil, fmt.Errorf("hapax: reading whose directory %s is: %w", d.Path(), err)
	case string(found) != ours:
		return nil, fmt.Errorf("%w: %s is the directory of another partition than %s: give each process a directory, and remove this one, which is restored", storage.ErrForeign, d.Path(), strings.TrimSpace(ours))
	}
	return p.In(filepath.Join(d.Path(), copyName)), nil
}
