package filters

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/hapax-dev/hapax/engine/limits"
)

func TestMemoryIsTheLeastOfWhatLimitsIt(t *testing.T) {
	const machine = "MemFree:  1 kB\nMemTotal:       16384000 kB\nSwapTotal: 5 kB\n" // 15.6 GiB
	const total = 16384000 << 10
	for name, tt := range map[string]struct {
		files   map[string]string
		goLimit int64
		want    uint64
	}{
		"no file":                   {nil, math.MaxInt64, unknownMemory},
		"a machine":                 {map[string]string{"proc/meminfo": machine}, math.MaxInt64, total},
		"GOMEMLIMIT":                {map[string]string{"proc/meminfo": machine}, 1 << 30, 1 << 30},
		"GOMEMLIMIT only":           {nil, 1 << 30, 1 << 30},
		"GOMEMLIMIT=0":              {nil, 0, 0},
		"GOMEMLIMIT beyond":         {map[string]string{"proc/meminfo": machine}, 1 << 40, total},
		"a container":               {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "268435456\n"}, math.MaxInt64, 256 << 20},
		"a container without limit": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, math.MaxInt64, total},
		"a service": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "2147483648\n", "sys/fs/cgroup/a.slice/memory.max": "max\n"}, math.MaxInt64, 2 << 30},
		"the limit of a parent": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max": "2147483648\n", "sys/fs/cgroup/a.slice/memory.max": "1073741824\n"}, math.MaxInt64, 1 << 30},
		"version 1 beside version 2": {map[string]string{"proc/self/cgroup": "12:memory:/x\n0::/y\n", "sys/fs/cgroup/x/memory.max": "1024\n",
			"sys/fs/cgroup/y/memory.max": "1048576\n"}, math.MaxInt64, 1 << 20},
		"a group outside of the mounted ones": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/x/memory.max": "1048576\n"}, math.MaxInt64, 1 << 20},
		"files of something else":             {map[string]string{"proc/meminfo": "MemTotal: much kB\n", "proc/self/cgroup": "nothing\n", "sys/fs/cgroup/memory.max": "1\n"}, math.MaxInt64, unknownMemory},
	} {
		root := fstest.MapFS{}
		for name, data := range tt.files {
			root[name] = &fstest.MapFile{Data: []byte(data)}
		}
		if got := memoryOf(root, tt.goLimit); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", name, got, tt.want)
		}
	}
}

// The budget is never more than the share that is promised.
func TestTheBudgetIsAShareOfTheMemory(t *testing.T) {
	for memory, want := range map[uint64]uint64{
		0: 1, 64: 8, 1 << 20: 128 << 10, 64 << 20: 8 << 20, 100 << 20: 12 << 20, 1 << 30: 128 << 20, unknownMemory: 512 << 20,
		24 << 30: min(3<<30, limits.MaxFilterBytes), math.MaxUint64: limits.MaxFilterBytes,
	} {
		if got := shareOf(memory); got != want {
			t.Errorf("of %d bytes: %d, want %d", memory, got, want)
		}
	}
	if n := DefaultBytes(); n == 0 || n > limits.MaxFilterBytes {
		t.Errorf("here: %d bytes", n)
	}
}
