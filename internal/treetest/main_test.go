// Package treetest tests the tree: which package imports which, that the documents name existing
// tests, commands, metrics and errors, and that their links are valid.
package treetest

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests in the root of the repository: all paths are relative to it.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
