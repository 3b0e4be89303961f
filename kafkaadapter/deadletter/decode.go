package deadletter

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/decode"
)

// A decoder reads the values of a letter from a slice. After the first value that does not fit, it
// returns zeros.
type decoder struct{ Decoder decode.Decoder }

func newDecoder(b []byte) *decoder { return &decoder{decode.Decoder{Rest: b}} }

func (d *decoder) uvarint(most uint64) uint64 {
	v := d.Decoder.Uvarint()
	if v > most {
		d.Decoder.Bad = true
		return 0
	}
	return v
}

func (d *decoder) text() string { return string(d.Decoder.Bytes()) }

// count returns a number of items of at least least bytes each. A number that exceeds the remaining
// bytes is an error, and nothing is allocated for it.
func (d *decoder) count(least int) int { return int(d.uvarint(uint64(len(d.Decoder.Rest) / least))) }

func (d *decoder) headers() []kgo.RecordHeader {
	n := d.count(2)
	if d.Decoder.Bad || n == 0 {
		return nil
	}
	headers := make([]kgo.RecordHeader, n)
	for i := range headers {
		headers[i] = kgo.RecordHeader{Key: d.text(), Value: d.Decoder.Optional()}
	}
	return headers
}
