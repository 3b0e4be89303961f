package treetest

import (
	"regexp"
	"testing"
)

// TestOneVersionOfKafka compares the files that name the version of Kafka; different tools read
// each of them.
func TestOneVersionOfKafka(t *testing.T) {
	version := func(file, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(source(t, file))
		if m == nil {
			t.Fatalf("%s does not match %s", file, pattern)
		}
		return m[1]
	}
	want := version("tools.env", `(?m)^KAFKA=(\S+)$`)
	for file, pattern := range map[string]string{
		".ci/kafka/pom.xml":           `<kafka.version>(.*)</kafka.version>`,
		"bench/peers/streams/pom.xml": `<kafka.version>(.*)</kafka.version>`,
		".ci/kafka/jars.sha256":       `kafka-clients-(.*)\.jar`,

		"bench/peers/streams/jars.sha256": `kafka-clients-(.*)\.jar`,

		"compose.yaml":    `image: apache/kafka:([^@\s]+)`,
		"CONTRIBUTING.md": `Apache Kafka ([0-9.]+[0-9]) on 127`,
	} {
		if got := version(file, pattern); got != want {
			t.Errorf("%s names Kafka %s, tools.env %s", file, got, want)
		}
	}
}
