package bolt

import (
	"flag"
	"os"
	"os/exec"
	"testing"
)

// Only the benchmarks depend on the disk: a kill is a copy of the files. Where there is a file
// system in memory the tests use it, since they sync some thousand times.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		if dir, err := os.MkdirTemp("/dev/shm", "bolt"); err == nil {
			os.Setenv("TMPDIR", dir)
			defer os.RemoveAll(dir)
		}
	}
	if emulator() != "" {
		// qemu-user 7.2 allocates some hundred bytes for each page of a mapping, and a 32-bit
		// process has no room for several stores with the default mapping.
		defaultFileBytes = fileBytes32 / 4
	}
	m.Run()
}

// emulator returns the program that runs this test binary on another machine's instruction set (see
// .ci/edge), or "".
func emulator() string { return os.Getenv("HAPAX_TEST_EMULATOR") }

// child returns a command that runs this test binary, through the emulator if there is one.
func child(args ...string) *exec.Cmd {
	if e := emulator(); e != "" {
		return exec.Command(e, append([]string{os.Args[0]}, args...)...)
	}
	return exec.Command(os.Args[0], args...)
}
