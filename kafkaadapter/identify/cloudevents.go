package identify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The Kafka binding of CloudEvents 1.0: attributes are headers ce_* in binary mode; in structured
// mode the content type begins with that of CloudEvents, in any case of letters, and the payload is
// the whole event. Producers also spell the name of that header differently, or omit it.
const (
	contentType     = "content-type"
	cloudEventsType = "application/cloudevents"
	ceSource        = "ce_source"
)

// cloudEvent returns the identity of a CloudEvents event, and the time in its payload. It returns
// rule 0 if the record is not such an event, or lacks a source or an id.
func cloudEvent(r *kgo.Record, f *finding) (err error) {
	if kind := contentTypeOf(r.Headers); len(kind) >= len(cloudEventsType) {
		if bytes.EqualFold(kind[:len(cloudEventsType)], []byte(cloudEventsType)) {
			*f, err = structured(kind[len(cloudEventsType):], r.Value)
			return err
		}
	}
	id := LastHeader(r.Headers, CloudEventsID)
	if id == nil {
		return nil
	}
	if source := LastHeader(r.Headers, ceSource); source != nil {
		f.rule, f.id, f.source = IDCloudEvents, id, source
	}
	return nil
}

// contentTypeOf returns the last content type, without the spaces and quotes around it.
func contentTypeOf(headers []kgo.RecordHeader) []byte {
	for i := len(headers) - 1; i >= 0; i-- {
		if h := &headers[i]; len(h.Value) > 0 && isContentType(h.Key) {
			return bytes.Trim(h.Value, "\" \t")
		}
	}
	return nil
}

func isContentType(name string) bool {
	switch len(name) {
	case len(contentType):
		return strings.EqualFold(name, contentType) || strings.EqualFold(name, "content_type")
	case len("contenttype"):
		return strings.EqualFold(name, "contenttype")
	}
	return false
}

// unannounced finds the identity of a CloudEvents event in a payload that no header announces as one.
// It leaves f unchanged if the payload is anything else.
func unannounced(payload []byte, f *finding) {
	payload = bytes.TrimSpace(payload)
	if len(payload) == 0 || payload[0] != '{' || !bytes.Contains(payload, []byte(`"specversion"`)) {
		return
	}
	var attributes map[string]json.RawMessage
	if json.Unmarshal(payload, &attributes) != nil || len(attributes["specversion"]) < len(`"1"`) || attributes["specversion"][0] != '"' {
		return
	}
	if found, err := structuredOf(attributes); err == nil {
		*f = found
	}
}

// structured reads an event from a payload whose content type is that of CloudEvents followed by
// suffix.
func structured(suffix, payload []byte) (finding, error) {
	format, _, _ := bytes.Cut(suffix, []byte(";"))
	switch format := strings.ToLower(string(bytes.TrimSpace(format))); {
	case strings.HasPrefix(format, "-batch"):
		return finding{}, fmt.Errorf("%w: it is a CloudEvents batch: send each event in a separate record", ErrBadPayload)
	case format != "" && format != "+json":
		return finding{}, fmt.Errorf("%w: CloudEvents in the format %q cannot be read: send JSON, or use binary mode", ErrBadPayload, format)
	}
	// This is a map because the fields of a struct would be matched in any case of letters.
	var attributes map[string]json.RawMessage
	if err := json.Unmarshal(payload, &attributes); err != nil {
		return finding{}, fmt.Errorf("%w: CloudEvents in JSON: %w", ErrBadPayload, err)
	}
	return structuredOf(attributes)
}

func structuredOf(attributes map[string]json.RawMessage) (finding, error) {
	source, err := attribute(attributes, "source")
	if err != nil {
		return finding{}, err
	}
	id, err := attribute(attributes, "id")
	if err != nil {
		return finding{}, err
	}
	f := finding{rule: IDCloudEventsStructured, source: source, id: id}
	if at := bytes.Trim(attributes["time"], `"`); len(at) > 0 && string(at) != "null" {
		f.text = at // a time contains no escapes; any other text fails when it is parsed
	}
	return f, nil
}

// attribute returns a required string.
func attribute(attributes map[string]json.RawMessage, name string) ([]byte, error) {
	var s string
	err := json.Unmarshal(attributes[name], &s)
	switch {
	case err != nil || s == "":
		return nil, fmt.Errorf("%w: CloudEvents in JSON: %q is not a string, or is empty", ErrBadPayload, name)
	case strings.ContainsRune(s, '\uFFFD'):
		// That character replaces everything that is not UTF-8, so two ids that differ only there
		// would be equal.
		return nil, fmt.Errorf("%w: CloudEvents in JSON: %q has the replacement character or is not UTF-8", ErrBadPayload, name)
	}
	return []byte(s), nil
}
