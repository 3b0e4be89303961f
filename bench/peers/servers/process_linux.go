package servers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// inGroup starts the process in a new process group, so that its children can be ended with it.
func inGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// EndWithParent makes the system kill a process when its parent ends.
func EndWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// killGroup kills the process, its group and its descendants, because those of Postgres have
// separate groups.
func killGroup(cmd *exec.Cmd) {
	pid := cmd.Process.Pid
	below := descendants(pid)
	_ = syscall.Kill(-pid, syscall.SIGKILL) // it may have ended
	for _, p := range below {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
}

// asUser makes a process that root starts run as another user, for servers that refuse to run as
// root, and gives that user the directories.
func asUser(cmd *exec.Cmd, dirs ...string) error {
	if os.Getuid() != 0 {
		return nil
	}
	who, err := user.Lookup("postgres")
	if err != nil {
		if who, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, err := strconv.Atoi(who.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(who.Gid)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	for _, dir := range dirs {
		if err := os.Chown(dir, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// CPUSeconds sums the processor time of a process, its children, and their dead children.
func CPUSeconds(pid int) (seconds float64, err error) {
	for i, p := range append([]int{pid}, descendants(pid)...) {
		one, err := cpuSecondsOf(p)
		if err != nil && i == 0 {
			return 0, err
		}
		seconds += one // the parent counts a child that has ended meanwhile
	}
	return seconds, nil
}

// ticks is how many units of processor time Linux counts in a second, on every platform of Go.
const ticks = 100

func cpuSecondsOf(pid int) (seconds float64, err error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime: see proc(5)
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, err
		}
		seconds += float64(n) / ticks
	}
	return seconds, nil
}

// stat returns the fields of /proc/PID/stat from the third on.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 22 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}

// descendants lists all descendants of a process.
func descendants(pid int) (below []int) {
	children := map[int][]int{}
	paths, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range paths {
		p, _ := strconv.Atoi(filepath.Base(path))
		if fields, err := stat(p); err == nil {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], p)
		}
	}
	for next := children[pid]; len(next) > 0; next = next[1:] {
		below = append(below, next[0])
		next = append(next, children[next[0]]...)
	}
	return below
}

// ResidentBytes is the resident memory of one process.
func ResidentBytes(pid int) (uint64, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseUint(fields[21], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}
