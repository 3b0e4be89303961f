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

// A logReader reads an event log: CSV with a header line, columns "id" and "time" (RFC 3339),
// others are ignored. A gzip'd log is recognized by its first bytes.
//
// A row that is not an event is a *rowError, and the next call goes on behind it. One damaged row
// never takes others with it: a quoted field may contain line breaks, but where a quote does not
// end within a few lines, or what it encloses is not an event, the line it stands on is rejected
// alone.
type logReader struct {
	in    *bufio.Reader
	close func() error

	line    int    // number of the last line read, from 1
	pending []line // lines read ahead, to be read again
	columns int
	id, at  int // columns
	blank   uint64
}

type line struct {
	number int
	text   []byte // without its end
	reason string // why it cannot be a row, "" if it can
}

// A row is one event of a log. ID is valid until the next call of next.
type row struct {
	Line int
	ID   []byte
	Time time.Time
}

// A rowError says why a row is not an event.
type rowError struct {
	Line   int
	Reason string
}

func (e *rowError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

const (
	maxLineBytes  = 1 << 20
	maxQuoteLines = 64 // that one quoted field may span
)

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
	b := bufio.NewReaderSize(in, 1<<16)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1F, 0x8B}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		b = bufio.NewReaderSize(z, 1<<16)
	}
	r := &logReader{in: b, close: func() error { return nil }}
	return r, r.header()
}

func (r *logReader) header() error {
	l, err := r.readLine()
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty: a log begins with a header line such as id,time,source")
	}
	if err != nil {
		return err
	}
	names, err := splitRow(bytes.TrimPrefix(l.text, []byte("\xEF\xBB\xBF")))
	if err != nil || l.reason != "" {
		return errors.New("the header line is not CSV: a log begins with a header line such as id,time,source")
	}
	r.columns, r.id, r.at = len(names), -1, -1
	for i, name := range names {
		switch strings.ToLower(strings.TrimSpace(string(name))) {
		case "id":
			r.id = i
		case "time":
			r.at = i
		}
	}
	if r.id < 0 || r.at < 0 {
		return fmt.Errorf("the first line %.60q names no columns id and time: add a header line such as id,time,source", l.text)
	}
	return nil
}

// next returns the next event, a *rowError for a row that is none, io.EOF at the end, or what ended
// the reading early.
func (r *logReader) next() (row, error) {
	for {
		l, err := r.readLine()
		switch {
		case err != nil:
			return row{}, err
		case l.reason != "":
			return row{}, &rowError{l.number, l.reason}
		case len(l.text) == 0:
			r.blank++
			continue
		}
		if bytes.Count(l.text, []byte{'"'})%2 == 1 {
			return r.nextQuoted(l)
		}
		return r.parse(l.number, l.text)
	}
}

// nextQuoted reads a row whose first line ends inside quotes.
func (r *logReader) nextQuoted(first line) (row, error) {
	text := bytes.Clone(first.text)
	var ahead []line
	for len(ahead) < maxQuoteLines && len(text) < maxLineBytes {
		l, err := r.readLine()
		if err != nil {
			break // it comes again, behind the lines read ahead
		}
		l.text = bytes.Clone(l.text)
		ahead = append(ahead, l)
		text = append(append(text, '\n'), l.text...)
		if bytes.Count(l.text, []byte{'"'})%2 == 0 {
			continue
		}
		if ev, err := r.parse(first.number, text); err == nil {
			return ev, nil
		}
		break
	}
	r.pending = append(ahead, r.pending...)
	return row{}, &rowError{first.number, "a quote is not closed"}
}

func (r *logReader) parse(number int, text []byte) (row, error) {
	fields, err := splitRow(text)
	switch {
	case err != nil:
		return row{}, &rowError{number, "not CSV: " + err.Error()}
	case len(fields) != r.columns:
		return row{}, &rowError{number, fmt.Sprintf("%d columns, the header has %d", len(fields), r.columns)}
	case len(fields[r.id]) == 0:
		return row{}, &rowError{number, "no id"}
	case len(fields[r.at]) == 0:
		return row{}, &rowError{number, "no time"}
	}
	ev := row{Line: number, ID: fields[r.id]}
	if err := ev.Time.UnmarshalText(fields[r.at]); err != nil {
		return row{}, &rowError{number, fmt.Sprintf("time %.40q is not RFC 3339", fields[r.at])}
	}
	return ev, nil
}

// splitRow takes a row apart. The fields are part of text where nothing is quoted.
func splitRow(text []byte) ([][]byte, error) {
	if bytes.IndexByte(text, '"') < 0 {
		return bytes.Split(text, []byte{','}), nil
	}
	c := csv.NewReader(bytes.NewReader(text))
	c.FieldsPerRecord = -1
	values, err := c.Read()
	if err != nil {
		var parse *csv.ParseError
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, err
	}
	fields := make([][]byte, len(values))
	for i, v := range values {
		fields[i] = []byte(v)
	}
	return fields, nil
}

// readLine returns the next line, without LF or CRLF. The text is valid until the next call. A line
// that the end of a broken file cuts off is returned as one that is no row, and the error by the
// next call.
func (r *logReader) readLine() (line, error) {
	if len(r.pending) > 0 {
		l := r.pending[0]
		r.pending = r.pending[1:]
		return l, nil
	}
	text, err := r.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return r.readLongLine(bytes.Clone(text))
	}
	return r.endLine(text, err)
}

func (r *logReader) readLongLine(text []byte) (line, error) {
	for {
		part, err := r.in.ReadSlice('\n')
		if len(text) <= maxLineBytes {
			text = append(text, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		l, err := r.endLine(text, err)
		if len(l.text) > maxLineBytes {
			l.reason = fmt.Sprintf("longer than %d bytes", maxLineBytes)
		}
		return l, err
	}
}

// endLine makes a line of what was read until err.
func (r *logReader) endLine(text []byte, err error) (line, error) {
	if len(text) == 0 && err != nil {
		return line{}, readError(err)
	}
	r.line++
	l := line{number: r.line, text: text}
	if err != nil && !errors.Is(err, io.EOF) {
		l.reason = "cut off: " + readError(err).Error()
	}
	l.text = bytes.TrimSuffix(bytes.TrimSuffix(l.text, []byte{'\n'}), []byte{'\r'})
	return l, nil
}

func readError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends too early, get it again: %w", err)
	}
	return err
}
