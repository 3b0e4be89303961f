package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// ErrIncomplete means that a record is the replay of a dead letter whose value was left out because
// of its size. To replay it, read the record at the position in the header hapax_dlt_omitted_from, and
// send its key, value and headers together with the letter's headers, but without hapax_dlt_omitted.
var ErrIncomplete = errors.New("hapax: the value of a replayed dead letter was left out: send the original record's value with the letter's headers, and remove the header " + dltOmitted)

// Size returns the approximate size of a letter in the store and in the topic, before compression.
func Size(letter *kgo.Record) int {
	n := 16 + len(letter.Key) + len(letter.Value)
	for i := range letter.Headers {
		n += 4 + len(letter.Headers[i].Key) + len(letter.Headers[i].Value)
	}
	return n
}

// The values of the header dltOmitted.
const (
	omittedValue  = "value"
	omittedRecord = "record" // key, value and headers
)

// shorter lists the shortened forms of a letter. Each leaves out more than the previous one.
var shorter = []func(*kgo.Record) *kgo.Record{withoutValue, withoutRecord}

// maxStored is the maximum size of a letter in its own batch. The rest of the transaction is for the
// claim, the offset and the adapter's own keys.
const maxStored = limits.TxBytes - 1<<20

// Fit returns a letter that has room in a transaction of the store. One that is too large is shortened
// with omit; otherwise Fit returns ErrTooLarge.
func Fit(letter *kgo.Record, omit bool) (*kgo.Record, error) {
	if omit {
		letter = shorten(letter, maxStored)
	}
	if n := Size(letter); n > maxStored {
		return nil, fmt.Errorf("%w: it has %d bytes, and a transaction of the store has room for %d", ErrTooLarge, n, maxStored)
	}
	return letter, nil
}

// shorten returns a letter of at most most bytes, by Size: without its value, or, if its key or its
// headers are too large, with the adapter's own headers only. The header hapax_dlt_omitted says so,
// hapax_dlt_omitted_bytes has the number of bytes that were left out, and hapax_dlt_omitted_from the
// position of the whole record. It returns the letter itself if it fits.
func shorten(letter *kgo.Record, most int) *kgo.Record {
	short := letter
	for i := 0; i < len(shorter) && Size(short) > most; i++ {
		short = shorter[i](letter)
	}
	return short
}

// WithoutRecord returns a letter with the adapter's own headers only, of a record that cannot be read.
func WithoutRecord(letter *kgo.Record) *kgo.Record { return withoutRecord(letter) }

func withoutValue(letter *kgo.Record) *kgo.Record {
	return omitting(omittedValue, letter, &kgo.Record{Key: letter.Key, Headers: slices.Clone(letter.Headers)})
}

func withoutRecord(letter *kgo.Record) *kgo.Record {
	own := slices.DeleteFunc(slices.Clone(letter.Headers), func(h kgo.RecordHeader) bool { return !strings.HasPrefix(h.Key, HeaderPrefix) })
	return omitting(omittedRecord, letter, &kgo.Record{Headers: own})
}

// omitting adds the headers that say what short lacks compared with letter. Parts of letter may
// have been left out already.
func omitting(what string, letter, short *kgo.Record) *kgo.Record {
	n := Size(letter) - Size(short)
	if before, err := strconv.Atoi(string(identify.LastHeader(letter.Headers, dltOmittedBytes))); err == nil {
		n += before
	}
	from := omittedFrom(letter)
	h := headerList(slices.DeleteFunc(short.Headers, isOmitted))
	h.text(dltOmitted, what)
	h.number(dltOmittedBytes, int64(n))
	h.text(dltOmittedFrom, from)
	short.Headers = h
	return short
}

func isOmitted(h kgo.RecordHeader) bool {
	return h.Key == dltOmitted || h.Key == dltOmittedBytes || h.Key == dltOmittedFrom
}

// omittedFrom returns the position of the whole record of a letter. A letter about a letter that
// was not accepted as a replay has another original position, at which the record is incomplete as
// well.
func omittedFrom(letter *kgo.Record) string {
	value := func(name string) []byte { return identify.LastHeader(letter.Headers, name) }
	if before := value(dltOmittedFrom); before != nil {
		return string(before)
	}
	return fmt.Sprintf("%s/%s/%s", value(dltTopic), value(dltPartition), value(dltOffset))
}

// omittedOf returns the headers that say what a record lacks, nil if it is complete.
func omittedOf(r *kgo.Record) []kgo.RecordHeader {
	if Incomplete(r) == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return !isOmitted(h) })
}

const maxValue = 512 // maximum number of bytes of a header in the text of an error; a position is shorter

// Incomplete returns an error that wraps ErrIncomplete and names the original position if something
// was left out of a dead letter, or of a record that has the headers of one.
func Incomplete(r *kgo.Record) error {
	if identify.LastHeader(r.Headers, dltOmitted) == nil {
		return nil
	}
	value := func(name string) string {
		return untrusted.Capped(string(identify.LastHeader(r.Headers, name)), maxValue)
	}
	return fmt.Errorf("%w: the %s of %s bytes is at %q", ErrIncomplete, value(dltOmitted), value(dltOmittedBytes), untrusted.Capped(omittedFrom(r), maxValue))
}
