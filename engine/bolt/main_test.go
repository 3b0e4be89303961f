package bolt

import (
	"flag"
	"os"
	"testing"
)

// Nothing but the benchmarks depends on the disk: a kill is a copy of the files. Where there is a file system in memory
// the tests use it, since they sync some thousand times.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		if dir, err := os.MkdirTemp("/dev/shm", "bolt"); err == nil {
			os.Setenv("TMPDIR", dir)
			defer os.RemoveAll(dir)
		}
	}
	m.Run()
}
