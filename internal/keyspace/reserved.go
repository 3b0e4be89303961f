package keyspace

import "strings"

// Prefixes of application keys that belong to packages of this module. They are part of the format
// on disk. All other keys that begin with moduleKeys are reserved for later packages.
const (
	KafkaKeys  = "\x00hapax/kafka\x00"
	moduleKeys = "\x00hapax/"
)

// KafkaLetter follows KafkaKeys in the keys of dead letters that are not published yet.
const KafkaLetter = 'l'

// A reserved is a range of application keys that only its owner may write. Everybody may read them.
type reserved struct{ prefix, owner string }

var (
	kafka  = &reserved{KafkaKeys, "package kafkaadapter"}
	module = &reserved{moduleKeys, "this module"}
)

// Kafka is the space of package kafkaadapter: the application keys that begin with KafkaKeys. Keys
// in this space include that prefix.
var Kafka = Space{name: "kafka", reserved: kafka}

// Owner returns the name of the space's owner for the text of an error.
func (s Space) Owner() string {
	if s.reserved != nil {
		return s.reserved.owner
	}
	return "package " + s.name
}

// IsReserved reports whether the keys of the space are application keys.
func (s Space) IsReserved() bool { return s.reserved != nil }

// Refuses reports whether an application key belongs to another owner than s, and returns that
// owner and the prefix of its keys. Applications write as the zero Space.
func (s Space) Refuses(key []byte) (prefix, owner string, refuses bool) {
	if len(key) == 0 || key[0] != 0 {
		return "", "", false
	}
	for _, r := range []*reserved{kafka, module} {
		if strings.HasPrefix(string(key[:min(len(key), len(r.prefix))]), r.prefix) {
			return r.prefix, r.owner, s.reserved != r
		}
	}
	return "", "", false
}
