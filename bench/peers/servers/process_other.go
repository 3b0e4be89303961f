//go:build !linux

package servers

import (
	"errors"
	"os/exec"
)

var errLinux = errors.New("comparisons run on Linux only")

func inGroup(*exec.Cmd) {}

// EndWithParent makes the system kill a process when its parent ends.
func EndWithParent(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func asUser(*exec.Cmd, ...string) error { return errLinux }

// CPUSeconds sums the processor time of a process, its children, and their dead children.
func CPUSeconds(int) (float64, error) { return 0, errLinux }

// DiskWritten returns the bytes that all processes have written to the disk of a directory.
func DiskWritten(string) (uint64, error) { return 0, errLinux }

// ResidentBytes is the resident memory of one process.
func ResidentBytes(int) (uint64, error) { return 0, errLinux }
