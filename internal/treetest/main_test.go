// Package treetest tests the tree: which package imports which, that the documents name existing
// tests, commands, metrics and errors, and that their links are valid.
package treetest

import (
	"fmt"
	"os"
	"testing"
)

// root is the directory of the repository.
var root string

// TestMain runs the tests in the root of the repository: all paths are relative to it.
func TestMain(m *testing.M) {
	err := os.Chdir("../..")
	if err == nil {
		root, err = os.Getwd()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// logRoot makes the files that are read from now on inputs of the test for the go command, which
// otherwise returns a cached result although they have changed: it does not see the change of
// directory in TestMain, because the testing package watches only after that.
func logRoot(t *testing.T) {
	t.Helper()
	if err := os.Chdir(root); err != nil {
		t.Fatal(err)
	}
}
