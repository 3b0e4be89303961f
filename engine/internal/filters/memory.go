package filters

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/engine/limits"
)

const (
	// memoryShare is the part of the process's memory that all filters may use by default: one of so many.
	memoryShare = 8

	// unknownMemory is assumed where the system does not tell its memory: filters get 512 MiB.
	unknownMemory = memoryShare * 512 << 20

	megabyte = 1 << 20
)

// DefaultBytes returns the budget of filters that follows the memory of the process: an eighth of it.
func DefaultBytes() uint64 {
	return shareOf(memoryOf(os.DirFS("/"), debug.SetMemoryLimit(-1)))
}

// shareOf returns whole megabytes, if the share has one: a kernel that keeps some bytes more does not
// change the budget.
func shareOf(memory uint64) uint64 {
	share := min(memory/memoryShare, limits.MaxFilterBytes)
	if share < megabyte {
		return max(share, 1)
	}
	return share / megabyte * megabyte
}

// memoryOf returns the memory that the process may use: the least of the machine's, of what the control
// groups (v2) of the process allow, and of the limit of Go's runtime. What cannot be read limits nothing.
func memoryOf(root fs.FS, goLimit int64) uint64 {
	memory := uint64(math.MaxUint64)
	if total, ok := memTotal(root); ok {
		memory = total
	}
	for _, name := range groupsOf(root) {
		if limit, ok := groupLimit(root, name); ok {
			memory = min(memory, limit)
		}
	}
	if memory == math.MaxUint64 {
		memory = unknownMemory
	}
	return min(memory, uint64(max(goLimit, 0)))
}

// memTotal reads the machine's memory as Linux reports it.
func memTotal(root fs.FS) (uint64, bool) {
	data, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			n, err := strconv.ParseUint(f[1], 10, 54)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// groupsOf returns the directory of the process's control group and those of its parents: each has a
// limit of its own. In a container, the first is usually the root of what is mounted.
func groupsOf(root fs.FS) (dirs []string) {
	const mounted = "sys/fs/cgroup"
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		group, ok := strings.CutPrefix(lines.Text(), "0::")
		if !ok {
			continue
		}
		for dir := path.Join("/", group); ; dir = path.Dir(dir) {
			dirs = append(dirs, path.Join(mounted, dir))
			if dir == "/" {
				return dirs
			}
		}
	}
	return nil
}

// groupLimit reads the limit of a control group, false if it has none ("max").
func groupLimit(root fs.FS, dir string) (uint64, bool) {
	data, err := fs.ReadFile(root, path.Join(dir, "memory.max"))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
