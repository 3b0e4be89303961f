package watermilldedup

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The result of a claim is the messages that its handler has produced: nothing, or the form 1 and
// each message: its UUID, the number of its metadata, for each of them in order the key and the
// value, 0 for a payload that is nil and 1 for any other, and the payload. Texts are encoded as
// their length and their bytes; numbers and lengths are uvarints.
//
// A payload that is nil, which publishers such as that of Kafka send as a tombstone, is not an empty
// one.
const producedForm = 1

var errProduced = errors.New("hapax: watermilldedup: the result of the key is not that of this package: give the handler a scope of its own (Options.Scope)")

func encode(messages []*message.Message) []byte {
	if len(messages) == 0 {
		return nil
	}
	b := []byte{producedForm}
	for _, m := range messages {
		b = appendText(b, m.UUID)
		b = binary.AppendUvarint(b, uint64(len(m.Metadata)))
		for _, key := range slices.Sorted(maps.Keys(m.Metadata)) {
			b = appendText(b, key)
			b = appendText(b, m.Metadata[key])
		}
		if m.Payload == nil {
			b = append(b, 0)
			continue
		}
		b = appendText(append(b, 1), string(m.Payload))
	}
	return b
}

func decode(b []byte) (messages []*message.Message, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	d := decoder{rest: b[1:], bad: b[0] != producedForm}
	for !d.bad && len(d.rest) > 0 {
		m := message.NewMessage(d.text(), nil)
		for n := d.uvarint(); n > 0 && !d.bad; n-- {
			key := d.text()
			m.Metadata[key] = d.text()
		}
		switch d.uvarint() {
		case 0:
		case 1:
			m.Payload = message.Payload(d.text())
		default:
			d.bad = true
		}
		messages = append(messages, m)
	}
	if d.bad {
		return nil, errProduced
	}
	return messages, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// A decoder reads from rest; after the first failure it returns zero values.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.bad = d.bad || n <= 0; d.bad {
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) text() string {
	n := d.uvarint()
	if d.bad = d.bad || n > uint64(len(d.rest)); d.bad {
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}
