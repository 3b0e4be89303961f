package bench

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
)

// readAll reads a log to its end: ids unchanged, rejected rows as "!line".
func readAll(t *testing.T, in io.Reader) (rows []string, err error) {
	t.Helper()
	r, err := newLogReader(in)
	if err != nil {
		return nil, err
	}
	for {
		ev, err := r.next()
		var bad *rowError
		switch {
		case errors.As(err, &bad):
			rows = append(rows, fmt.Sprintf("!%d", bad.Line))
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return rows, err
		default:
			rows = append(rows, ev.ID)
		}
	}
}

const at = "2025-05-04T13:40:18.110Z"

func TestLogRows(t *testing.T) {
	tests := []struct {
		name, log string
		want      []string
	}{
		{"plain", "id,time,source\na," + at + ",x\nb," + at + ",y\n", []string{"a", "b"}},
		{"no line end at the end", "id,time\na," + at, []string{"a"}},
		{"CRLF", "id,time,source\r\na," + at + ",x\r\nb," + at + ",y\r\n", []string{"a", "b"}},
		{"byte order mark", "\uFEFFid,time\na," + at + "\n", []string{"a"}},
		{"columns in another order", "source,Time, ID\nx," + at + ",a\n", []string{"a"}},
		{"quoted id", "id,time\n\"a,\"\"1\"\"\"," + at + "\n", []string{`a,"1"`}},
		{"a row is one line", "id,time\n\"a\nb\"," + at + "\nc," + at + "\n", []string{"!2", "!3", "c"}},
		{"any bytes but line ends", "id,time\n\x00\xFF|," + at + "\n", []string{"\x00\xFF|"}},
		{"no id", "id,time\n," + at + "\nb," + at + "\n", []string{"!2", "b"}},
		{"no time", "id,time\na,\nb," + at + "\n", []string{"!2", "b"}},
		{"time that is none", "id,time\na,yesterday\nb,2025-02-30T00:00:00Z\nc,1746366018\nd," + at + "\n", []string{"!2", "!3", "!4", "d"}},
		{"other zone", "id,time\na,2025-05-04T13:40:18+02:00\n", []string{"a"}},
		{"too few and too many columns", "id,time,source\na\nb," + at + ",x,y\nc," + at + ",x\n", []string{"!2", "!3", "c"}},
		{"blank lines are no rows", "id,time\n\na," + at + "\n\n", []string{"a"}},
		{"stray quote takes no other row with it", "id,time\n\"a," + at + "\nb," + at + "\nc," + at + "\n", []string{"!2", "b", "c"}},
		{"two stray quotes", "id,time\n\"a," + at + "\nb\"," + at + ",\nc," + at + "\n", []string{"!2", "!3", "c"}},
		{"quote within a field", "id,time\na\"b\"," + at + "\nc," + at + "\n", []string{"!2", "c"}},
		{"header alone", "id,time\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readAll(t, strings.NewReader(tt.log))
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("rows %q, error %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestLogWithoutHeaderIsRefused(t *testing.T) {
	for _, log := range []string{"", "a," + at + "\n", "\x00\x01\x02", "time,source\n"} {
		if rows, err := readAll(t, strings.NewReader(log)); err == nil {
			t.Errorf("%q was read as %q", log, rows)
		}
	}
}

func TestLongLineIsRejectedAndBounded(t *testing.T) {
	long := strings.Repeat("x", 6*maxLineBytes)
	for half := range 4 { // the reader has a part of the line at its end, or nothing
		last := long[half*maxLineBytes/2:]
		got, err := readAll(t, strings.NewReader("id,time\n"+long+","+at+"\nb,"+at+"\n"+last))
		if want := []string{"!2", "b", "!4"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("a last line of %d bytes: rows %.40q, error %v; want %q", len(last), got, err, want)
		}
	}
	if _, err := readAll(t, strings.NewReader(long)); err == nil {
		t.Error("a header that is too long was read")
	}
}

func TestTruncatedGzipGivesTheRowsBeforeAndAnError(t *testing.T) {
	var whole bytes.Buffer
	z := gzip.NewWriter(&whole)
	fmt.Fprintln(z, "id,time")
	for i := range 20_000 {
		fmt.Fprintf(z, "%016x,%s\n", traffic.Mix(uint64(i)), at)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	rows, err := readAll(t, bytes.NewReader(whole.Bytes()[:whole.Len()/2]))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v", err)
	}
	if len(rows) < 1000 || len(rows) >= 20_000 {
		t.Fatalf("%d rows", len(rows))
	}
	// The last line may be truncated, and is then no row.
	for i, row := range rows[:len(rows)-1] {
		if want := fmt.Sprintf("%016x", traffic.Mix(uint64(i))); row != want {
			t.Fatalf("row %d is %q, want %q", i, row, want)
		}
	}
	if last := rows[len(rows)-1]; last[0] != '!' && last != fmt.Sprintf("%016x", traffic.Mix(uint64(len(rows)-1))) {
		t.Errorf("the row that was cut off was read as %q", last)
	}
}

func FuzzLogNeverLosesALine(f *testing.F) {
	f.Add("a," + at + "\n\"b\nc\"," + at + "\n\"\n\n,\n")
	f.Fuzz(func(t *testing.T, body string) {
		r, err := newLogReader(strings.NewReader("id,time\n" + body + "\nlast," + at + "\n"))
		if err != nil {
			t.Fatalf("the header is there, whatever follows: %v", err)
		}
		last := ""
		for line := 0; ; {
			ev, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			var bad *rowError
			number := ev.Line
			if errors.As(err, &bad) {
				number = bad.Line
			} else if err != nil {
				t.Fatal(err)
			}
			if number <= line {
				t.Fatalf("line %d after line %d", number, line)
			}
			line, last = number, ev.ID
		}
		if last != "last" {
			t.Fatalf("the last row was read as %q", last)
		}
	})
}
