//go:build !linux

package main

import "errors"

// exchange is possible on Linux only.
func exchange(string, string) error { return errors.ErrUnsupported }
