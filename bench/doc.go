// Package bench runs workloads on the engine and measures them: it replays logs, compares claims
// with the store's library alone, drops weeks, and kills processes.
//
// There is one file for each workload, with an options struct, whose fields are the flags of the
// command of the same name, with their defaults, and a report struct, whose JSON form is the
// contract of that command. A run returns its report also when it fails, with the
// counts so far. Nothing here prints.
//
// Workloads that kill a process start the running program again (process.go), as a worker that
// consumes a log: claims of the engine alone (claimworker.go), a topic through the adapter or
// without it (adapterconsumer.go, plainconsumer.go), or a service with all layers
// (layersprocess.go). One loop starts and kills them (lives.go). What consumers of a topic have
// done is counted in one place (consume.go), and one ledger compares the store that they leave with
// what has to be there (ledger.go). A program that runs such workloads calls ChildMain first in
// main.
//
// Numbers come from the machine that they were measured on; a report never contains one that was
// not.
package bench
