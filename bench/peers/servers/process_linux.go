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

// inGroup gives the process a group of its own, so that its children can be ended with it.
func inGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// EndWithParent has a process killed when the one that starts it ends.
func EndWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// killGroup kills the process, its group, and the processes below it: those of Postgres have
// groups of their own.
func killGroup(cmd *exec.Cmd) {
	pid := cmd.Process.Pid
	below := descendants(pid)
	_ = syscall.Kill(-pid, syscall.SIGKILL) // it may have ended
	for _, p := range below {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
}

// asUser lets a process that root starts run as another user, for servers that refuse root, and
// gives that user the directories.
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

// UsageOf sums what a process, its children, and their dead children have used.
func UsageOf(pid int) (u Usage, err error) {
	for i, p := range append([]int{pid}, descendants(pid)...) {
		one, err := usageOfOne(p)
		if err != nil && i == 0 {
			return u, err
		}
		u.Seconds += one.Seconds // a child that has ended meanwhile is counted by its parent
		u.Written += one.Written
	}
	return u, nil
}

// ticks a second is what Linux counts processor time in, on every platform of Go.
const ticks = 100

func usageOfOne(pid int) (u Usage, err error) {
	fields, err := stat(pid)
	if err != nil {
		return u, err
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime: see proc(5)
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return u, err
		}
		u.Seconds += float64(n) / ticks
	}
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return u, err
	}
	for line := range bytes.Lines(io) {
		if n, ok := bytes.CutPrefix(line, []byte("write_bytes: ")); ok {
			u.Written, err = strconv.ParseUint(string(bytes.TrimSpace(n)), 10, 64)
		}
	}
	return u, err
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

// descendants lists the processes below one.
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

// OwnUsage is the usage of this process.
func OwnUsage() (Usage, error) { return UsageOf(os.Getpid()) }
