// Package treetest tests the tree: which package imports which, that the documents name tests,
// commands, metrics and errors that exist, and that their links lead somewhere.
package treetest

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests in the root of the repository: every path is relative to it.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
