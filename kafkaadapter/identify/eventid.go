package identify

import "encoding/binary"

// The encodings of event ids for the engine. A producer's id from a header or a payload is
// unchanged, so that it can be read and looked up. Every composed id begins with a zero byte and a
// number that says what it is:
//
//	the id                                                     from a header or the payload, if it begins with another byte
//	00 01 | the id                                             if it begins with a zero byte
//	00 02 | len(source) uvarint | source | len(id) uvarint | id    CloudEvents, in either mode
//	00 03 | topic id 16 | partition u32 | offset u64           a position; big endian, so that offsets sort
//	00 04 | len(topic) uvarint | topic | one of the first three    with Rules.PerTopic
//
// Each part has a known end, so two ids are equal only if all their parts are. Stores contain them
// forever; any change gets a new number.
const (
	idMark       = 0x00
	idPlain      = 0x01
	idCloudEvent = 0x02
	idPosition   = 0x03
	idTopic      = 0x04

	positionIDLen = 2 + 16 + 4 + 8
)

// eventID returns the encoded id of an event that has an id. It does not copy an id that needs no
// encoding.
func (o *Rules) eventID(topic string, f *finding) []byte {
	if !o.PerTopic && f.source == nil && f.id[0] != idMark {
		return f.id
	}
	size := 2 + binary.MaxVarintLen32 + len(f.source) + binary.MaxVarintLen32 + len(f.id)
	if o.PerTopic {
		size += 2 + binary.MaxVarintLen32 + len(topic)
	}
	b := make([]byte, 0, size)
	if o.PerTopic {
		b = appendTopic(b, topic)
	}
	if f.source != nil {
		return appendCloudEvent(b, f.source, f.id)
	}
	return appendPlain(b, f.id)
}

// PlainID returns the event id of an event whose id is in a header or the payload, for look-ups.
func PlainID(id []byte) []byte { return appendPlain(nil, id) }

// CloudEventID returns the event id of a CloudEvents event.
func CloudEventID(source, id []byte) []byte { return appendCloudEvent(nil, source, id) }

// PositionID returns the event id of a record without an id: its position, with the id of its topic.
func PositionID(topicID [16]byte, partition int32, offset int64) []byte {
	b := append(make([]byte, 0, positionIDLen), idMark, idPosition)
	b = append(b, topicID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(partition))
	return binary.BigEndian.AppendUint64(b, uint64(offset))
}

// WithTopic returns the event id with Rules.PerTopic of an event that has the given one without it, which is
// no position. It is the inverse of SplitTopic.
func WithTopic(topic string, id []byte) []byte { return append(appendTopic(nil, topic), id...) }

func appendPlain(b, id []byte) []byte {
	if len(id) > 0 && id[0] == idMark {
		b = append(b, idMark, idPlain)
	}
	return append(b, id...)
}

func appendCloudEvent(b, source, id []byte) []byte {
	return appendBytes(appendBytes(append(b, idMark, idCloudEvent), source), id)
}

func appendTopic(b []byte, topic string) []byte {
	return append(binary.AppendUvarint(append(b, idMark, idTopic), uint64(len(topic))), topic...)
}

// SplitTopic separates the topic that Rules.PerTopic puts into an event id from the rest. The topic is
// nil if the id has none.
func SplitTopic(id []byte) (topic, rest []byte) {
	if len(id) < 2 || id[0] != idMark || id[1] != idTopic {
		return nil, id
	}
	topic, rest, ok := cutBytes(id[2:])
	if !ok {
		return nil, id
	}
	return topic, rest
}

// SplitSource separates the source of a CloudEvents event from its id, both as they are in an event id
// without a topic. The source is nil if the id is of another kind.
func SplitSource(id []byte) (source, rest []byte) {
	if len(id) < 2 || id[0] != idMark || id[1] != idCloudEvent {
		return nil, id
	}
	source, after, ok := cutBytes(id[2:])
	if !ok {
		return nil, id
	}
	rest, after, ok = cutBytes(after)
	if !ok || len(after) > 0 {
		return nil, id
	}
	return source, rest
}

// cutBytes returns the bytes that appendBytes has appended, and those after them.
func cutBytes(b []byte) (part, after []byte, ok bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, b, false
	}
	return b[used : used+int(n)], b[used+int(n):], true
}

// appendBytes appends b after its length.
func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}
