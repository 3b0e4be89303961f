// Package bench runs workloads on the engine and measures them: it replays logs, compares claims
// with the store's library alone, drops weeks, and kills processes.
//
// There is one file for each workload, with an options struct, whose fields are the flags of the
// command of the same name, with their defaults, and a report struct, whose JSON form is the
// contract of that command. A run that fails also returns its report, with the counts so far.
// Nothing here prints.
//
// All workloads take their events from bench/internal/traffic, and those that kill a process run it
// with bench/internal/runner: claims of the engine alone (claimworker.go), a topic through the
// adapter or without it (consumer.go, adapterconsumer.go, plainconsumer.go), or a service with all
// layers (layersservice.go). One ledger records the reports of these processes and compares them
// with the store that they leave (ledger.go). A program that runs such workloads calls ChildMain
// first in main.
//
// A report contains only numbers that were measured on the machine of the run.
package bench

import "github.com/hapax-dev/hapax/bench/internal/runner"

// ChildMain does the work of a process if the arguments request it; ran is false if they do not. A
// program that runs workloads which kill a process must call it first in main.
func ChildMain(args []string) (code int, ran bool) {
	return runner.Main(args, &claimWorker{}, &consumer{}, &service{})
}
