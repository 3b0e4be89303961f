package bench

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A logReader reads an event log: CSV with a header line and columns "id" and "time" (RFC 3339);
// other columns are ignored. A gzip'd log is recognized by its first bytes.
//
// A row is one line, so that a stray quote rejects only its own line: a quoted field cannot contain
// a line end.
type logReader struct {
	lines *bufio.Reader
	text  *bufio.Reader // the line that row parses
	row   *csv.Reader
	close func() error

	line   int // number of the last line read, from 1
	id, at int // columns
	blank  uint64
}

// A row is one event of a log.
type row struct {
	Line int
	ID   string
	Time time.Time
}

// A rowError says why a row is not an event. The later rows can still be read.
type rowError struct {
	Line   int
	Reason string
}

func (e *rowError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

const maxLineBytes = 1 << 20

// openLog opens a log by its path.
func openLog(path string) (*logReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	r, err := newLogReader(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	r.close = f.Close
	return r, nil
}

// newLogReader reads the header.
func newLogReader(in io.Reader) (*logReader, error) {
	b := bufio.NewReader(in)
	in = b
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1F, 0x8B}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		in = z
	}
	r := &logReader{lines: bufio.NewReaderSize(in, maxLineBytes), text: bufio.NewReader(nil), close: func() error { return nil }, id: -1, at: -1}
	r.row = csv.NewReader(r.text) // which it uses unchanged
	r.row.ReuseRecord = true
	return r, r.header()
}

// readLine reads a line; of a line that is too long, text is the beginning.
func (r *logReader) readLine() (text []byte, long bool, err error) {
	if text, long, err = r.lines.ReadLine(); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("the file ends too early, get it again: %w", err)
		}
		return nil, false, err
	}
	r.line++
	for more := long; more && err == nil; { // the next call returns the error again
		_, more, err = r.lines.ReadLine()
	}
	return text, long, nil
}

func (r *logReader) header() error {
	text, long, err := r.readLine()
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the file is empty: a log begins with a header line such as id,time,source")
	case err != nil:
		return err
	}
	names, err := r.fields(bytes.TrimPrefix(text, []byte("\xEF\xBB\xBF")))
	if err != nil || long {
		return errors.New("the header line is not CSV: a log begins with a header line such as id,time,source")
	}
	for i, name := range names {
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "id":
			r.id = i
		case "time":
			r.at = i
		}
	}
	if r.id < 0 || r.at < 0 {
		return fmt.Errorf("the first line %.60q names no columns id and time: add a header line such as id,time,source", text)
	}
	return nil
}

// next returns the next event, a *rowError for an invalid row, io.EOF at the end, or the error that
// ended reading.
func (r *logReader) next() (row, error) {
	text, long, err := r.readLine()
	for ; err == nil && len(text) == 0; text, long, err = r.readLine() {
		r.blank++
	}
	if err != nil {
		return row{}, err
	}
	ev := row{Line: r.line}
	reject := func(format string, args ...any) (row, error) {
		return row{}, &rowError{ev.Line, fmt.Sprintf(format, args...)}
	}
	if long {
		return reject("longer than %d bytes", maxLineBytes)
	}
	fields, err := r.fields(text)
	switch {
	case err != nil:
		return reject("not CSV: %v", err)
	case fields[r.id] == "":
		return reject("no id")
	case fields[r.at] == "":
		return reject("no time")
	}
	ev.ID = fields[r.id]
	if err := ev.Time.UnmarshalText([]byte(fields[r.at])); err != nil {
		return reject("time %.40q is not RFC 3339", fields[r.at])
	}
	return ev, nil
}

// fields returns the fields of a line, which are as many as those of the header.
func (r *logReader) fields(text []byte) ([]string, error) {
	r.text.Reset(bytes.NewReader(text))
	fields, err := r.row.Read()
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		err = parse.Err // its line and column count from the start of text
	}
	return fields, err
}
