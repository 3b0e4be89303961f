package main

import (
	"errors"

	"github.com/alecthomas/kong"
)

var errEmpty = errors.New("empty: give a name, or leave the flag out")

// A dirFlag is the path of a directory. Only a flag that is left out stands for a temporary one.
type dirFlag string

// UnmarshalText refuses an empty path, which as a rule is a variable of a script that was not set.
func (d *dirFlag) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errEmpty
	}
	*d = dirFlag(kong.ExpandPath(string(text)))
	return nil
}

// A nameFlag is a name that cannot be empty.
type nameFlag string

// UnmarshalText refuses an empty name.
func (n *nameFlag) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errEmpty
	}
	*n = nameFlag(text)
	return nil
}
