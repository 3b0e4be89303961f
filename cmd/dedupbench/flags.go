package main

import (
	"errors"

	"github.com/alecthomas/kong"

	"github.com/hapax-dev/hapax/bench"
)

// storeFlag is shared by all commands.
type storeFlag struct {
	Store bench.StoreName `help:"Store to use: ${enum}." enum:"pebble,bolt" default:"pebble"`
}

// newStoreFlags are shared by the commands that keep the store that they make.
type newStoreFlags struct {
	storeFlag
	Dir dirFlag `help:"New directory of the store; kept. Without it: a temporary one."`
}

// brokersFlag is shared by the commands that need a broker.
type brokersFlag struct {
	Brokers []string `help:"Kafka brokers, host:port. Without it: one inside this process." placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
}

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
