package deadletter

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// Tools that keep headers as text replace what is not UTF-8, and some of them end a value at a zero
// byte. The rules may put more than the header's value into the id.
func TestReplayIsKnownByWhatTextToolsLeaveOfItsID(t *testing.T) {
	tools := map[string]func([]byte) []byte{
		"UTF-8": func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("\uFFFD")) },
		"C strings": func(b []byte) []byte {
			b, _, _ = bytes.Cut(b, []byte{0})
			return bytes.ToValidUTF8(b, []byte("\uFFFD"))
		},
	}
	for what, headers := range map[string][]string{
		"text":                     {"message_id", "7"},
		"a binary id":              {"message_id", "\x01\xff\xfe7\xfd"},
		"an id with a zero":        {"message_id", "7\xff\x008"},
		"a leading zero":           {"message_id", "\x007\xff"},
		"a CloudEvent":             {"ce_id", "7", "ce_source", "/s"},
		"a binary CloudEvent":      {"ce_id", "7\xff\xfe", "ce_source", "/s\xfd"},
		"a CloudEvent with a zero": {"ce_id", "7\xff\x008", "ce_source", "/s"},
	} {
		for _, rules := range []identify.Rules{{}, {PerTopic: true}} {
			r := aRecord(headers...)
			event, err := rules.Identify(r, aTopicID)
			if err != nil {
				t.Fatal(err)
			}
			letter := anIssuer.Letter(r, nil, aFailure(event), Neutral)
			for tool, text := range tools {
				again := sentBack(letter)
				again.Headers = slices.Clone(again.Headers)
				for i, h := range again.Headers {
					again.Headers[i] = kgo.RecordHeader{Key: h.Key, Value: text(h.Value)}
				}
				own, err := rules.Identify(again, aTopicID)
				if err != nil {
					t.Fatal(err)
				}
				if from, why := anIssuer.Replay(again, own); from == nil {
					t.Errorf("%s, per topic %t, after a tool for %s: %q", what, rules.PerTopic, tool, why)
				}
				for _, other := range []string{"8", strings.Repeat("8", 200)} {
					stranger := aRecord("message_id", other)
					stranger.Headers = append(stranger.Headers, slices.DeleteFunc(slices.Clone(again.Headers), func(h kgo.RecordHeader) bool {
						return !strings.HasPrefix(h.Key, HeaderPrefix)
					})...)
					own, err := rules.Identify(stranger, aTopicID)
					if err != nil {
						t.Fatal(err)
					}
					if from, why := anIssuer.Replay(stranger, own); from != nil || why != RefusedEvent {
						t.Errorf("%s, per topic %t: the record of %q is a replay (%q)", what, rules.PerTopic, other, why)
					}
				}
			}
		}
	}
}
