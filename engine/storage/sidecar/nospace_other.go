//go:build !windows

package sidecar

func isDiskFull(error) bool { return false }
