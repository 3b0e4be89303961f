package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

// Effects are what handlers did outside any store: a file to which each adds a line with the
// event's number, of 16 hexadecimal digits, and its id. A line is with the operating system when it
// was written, and survives the death of its process.
type effects struct{ *os.File }

func openEffects(path string) (effects, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	return effects{f}, err
}

// add writes one line, in one call, so that lines of several handlers do not mix.
func (e effects) add(number uint64, id []byte) error {
	_, err := e.Write(appendEffect(make([]byte, 0, 64), number, id))
	return err
}

func appendEffect(dst []byte, number uint64, id []byte) []byte {
	return fmt.Appendf(dst, "%016x %s\n", number, id)
}

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
	var want []byte
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return t, nil
		}
		n, nerr := strconv.ParseUint(string(line[:min(16, len(line))]), 16, 64)
		if nerr == nil && n < log.limit() {
			want = appendEffect(want[:0], n, log.event(n, nil).ID)
		}
		if err != nil || nerr != nil || n >= log.limit() || string(line) != string(want) {
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
