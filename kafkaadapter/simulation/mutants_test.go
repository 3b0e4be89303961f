package simulation

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var mutants = flag.Bool("simulate.mutants", false, "break rules in the code of the adapter, one after the other; each must be caught")

// The control for rules that no wrapper can break: the adapter is built without a rule, and the
// simulation must detect this within the given time.
func TestBrokenAdaptersAreCaught(t *testing.T) {
	if !*mutants {
		t.Skip("it builds the adapter for each mutant: give -simulate.mutants")
	}
	for _, m := range []struct {
		name, file, rule, broken string
		test                     string
	}{
		{"a lost fence check", "internal/owner/fence.go", "if err == nil && !f.Owns(r) {", "if err == nil && !f.Owns(r) && r.Width == 1<<31 {", "TestMembers"},
		{"commits without the store's identity", "commit.go", "rp.Metadata = kmsg.StringPtr(k[parts[topicPartition{req.Topics[i].Topic, rp.Partition}]].self)", "_ = rp", "TestEachEvent"},
		{"a fetch that resumes one record late", "takeover.go", "opening{b.offset, v.topicID}", "opening{b.offset + min(1, b.offset), v.topicID}", "TestEachEvent"},
		{"a revoked partition that is not cut off", "partition.go", "	p.cancel(ErrFenced)\n	if inOrder {", "	if waited >= 0 {\n		return false\n	}\n	p.cancel(ErrFenced)\n	if inOrder {", "TestMembers"},
	} {
		t.Run(m.name, func(t *testing.T) {
			path, err := filepath.Abs(filepath.Join("..", m.file))
			if err != nil {
				t.Fatal(err)
			}
			code, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(code), m.rule) != 1 {
				t.Fatalf("%s has the rule %d times: %s", m.file, strings.Count(string(code), m.rule), m.rule)
			}
			mutant, overlay := filepath.Join(t.TempDir(), filepath.Base(m.file)), filepath.Join(t.TempDir(), "overlay.json")
			replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string][]byte{mutant: []byte(strings.Replace(string(code), m.rule, m.broken, 1)), overlay: replace} {
				if err := os.WriteFile(name, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.Command("go", "test", "-tags", "synctests", "-overlay", overlay, "-run", m.test, "-simulate.duration", "60s", ".").CombinedOutput()
			seen := strings.Index(string(out), ": seed ")
			if err == nil || seen < 0 {
				t.Fatalf("the simulation has found no violation: %v\n%s", err, out[:min(len(out), 2000)])
			}
			line, _, _ := strings.Cut(string(out[seen+2:]), "\n")
			t.Log(line)
		})
	}
}
