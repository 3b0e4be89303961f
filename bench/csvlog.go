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
// A row is one line, so that a stray quote rejects its own line and no other: a quoted field cannot
// contain a line end.
type logReader struct {
	lines *bufio.Scanner
	text  *bufio.Reader // of the line that row parses
	row   *csv.Reader
	close func() error

	line   int  // number of the last line read, from 1
	long   bool // the line is longer than maxLineBytes; the scanner has its end only
	id, at int  // columns
	blank  uint64
}

// A row is one event of a log.
type row struct {
	Line int
	ID   string
	Time time.Time
}

// A rowError says why a row is not an event. The rows after it can be read.
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
	r := &logReader{lines: bufio.NewScanner(in), text: bufio.NewReader(nil), close: func() error { return nil }, id: -1, at: -1}
	r.lines.Buffer(make([]byte, 1<<16), 2*maxLineBytes)
	r.lines.Split(r.splitLine)
	r.row = csv.NewReader(r.text) // which it uses as it is
	r.row.ReuseRecord = true
	return r, r.header()
}

// splitLine is bufio.ScanLines, except that it skips the beginning of a line that is too long.
func (r *logReader) splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	advance, token, err = bufio.ScanLines(data, atEOF)
	if advance == 0 && len(data) > maxLineBytes {
		r.long = true
		return len(data), nil, nil
	}
	return advance, token, err
}

func (r *logReader) header() error {
	if !r.lines.Scan() && !r.long {
		if err := r.lines.Err(); err != nil {
			return readError(err)
		}
		return errors.New("the file is empty: a log begins with a header line such as id,time,source")
	}
	r.line++
	names, err := r.fields(bytes.TrimPrefix(r.lines.Bytes(), []byte("\xEF\xBB\xBF")))
	if err != nil || r.long {
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
		return fmt.Errorf("the first line %.60q names no columns id and time: add a header line such as id,time,source", r.lines.Bytes())
	}
	return nil
}

// next returns the next event, a *rowError for a row that is none, io.EOF at the end, or what ended
// the reading early.
func (r *logReader) next() (row, error) {
	for r.lines.Scan() {
		r.line++
		if len(r.lines.Bytes()) > 0 || r.long {
			return r.parse(r.lines.Bytes())
		}
		r.blank++
	}
	if err := r.lines.Err(); err != nil {
		return row{}, readError(err)
	}
	if r.long { // and the end of the file is that of the line
		r.line++
		return r.parse(nil)
	}
	return row{}, io.EOF
}

func (r *logReader) parse(text []byte) (row, error) {
	ev := row{Line: r.line}
	reject := func(format string, args ...any) (row, error) {
		return row{}, &rowError{ev.Line, fmt.Sprintf(format, args...)}
	}
	if r.long {
		r.long = false
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

func readError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends too early, get it again: %w", err)
	}
	return err
}
