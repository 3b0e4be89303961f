package bench

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// Effects are what handlers did outside any store: a file to which each adds a line with the
// event's number and id. A line is with the operating system when it was written, and survives the
// death of its process.
type effects struct {
	file *os.File
}

// A line is the number in 16 hexadecimal digits, a space, the id, and a line end. Ids of generated
// events are UUIDs; those of recorded ones are as long as they are.
const effectNumber = 16

func openEffects(path string) (*effects, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the file of effects: %w", err)
	}
	return &effects{f}, nil
}

// add writes one line, in one call, so that lines of several handlers do not mix.
func (e *effects) add(number uint64, id []byte) error {
	line := make([]byte, 0, 64)
	line = appendEffect(line, number, id)
	_, err := e.file.Write(line)
	return err
}

func appendEffect(dst []byte, number uint64, id []byte) []byte {
	var b [8]byte
	for i := range b {
		b[i] = byte(number >> (56 - 8*i))
	}
	dst = append(hex.AppendEncode(dst, b[:]), ' ')
	return append(append(dst, id...), '\n')
}

func (e *effects) close() error { return e.file.Close() }

// A tally counts how often each event was handled.
type tally struct {
	counts []uint32
	lines  uint64
}

// readEffects counts the lines of a file of effects; no file is no effects. What is not a whole
// line of an event of the log is an error.
func readEffects(path string, log *topicLog) (t tally, err error) {
	t.counts = make([]uint32, log.limit())
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("reading the effects: %w", err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, 1<<16)
	var want, number []byte
	var arena []byte
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return t, nil
		}
		n, ok := uint64(0), err == nil && len(line) > effectNumber
		if ok {
			number, err = hex.AppendDecode(number[:0], line[:effectNumber])
			for _, b := range number {
				n = n<<8 | uint64(b)
			}
			ok = err == nil && n < log.limit()
		}
		if ok {
			ev := log.event(n, arena[:0])
			want = appendEffect(want[:0], n, ev.ID)
			ok = bytes.Equal(line, want)
		}
		if !ok {
			return t, fmt.Errorf("%s: line %d is not an event of this run: %.80q", path, t.lines+1, line)
		}
		t.counts[n]++
		t.lines++
	}
}

// handled counts the events that were handled, and those that were handled more than once.
func (t *tally) handled() (once, twice uint64) {
	for _, n := range t.counts {
		if n > 0 {
			once++
		}
		if n > 1 {
			twice++
		}
	}
	return once, twice
}
