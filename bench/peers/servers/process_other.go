//go:build !linux

package servers

import (
	"errors"
	"os/exec"
)

var errLinux = errors.New("comparisons run on Linux only")

func inGroup(*exec.Cmd) {}

// EndWithParent has a process killed when the one that starts it ends.
func EndWithParent(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func asUser(*exec.Cmd, ...string) error { return errLinux }

// UsageOf sums what a process, its children, and their dead children have used.
func UsageOf(int) (Usage, error) { return Usage{}, errLinux }

// ResidentBytes is the resident memory of one process.
func ResidentBytes(int) (uint64, error) { return 0, errLinux }

// OwnUsage is the usage of this process.
func OwnUsage() (Usage, error) { return Usage{}, errLinux }
