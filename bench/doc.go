// Package bench drives the engine the way its users do, and measures what comes of it: logs
// replayed, claims counted against the bare store library, weeks dropped, processes killed.
//
// There is one file for each workload, with an options struct whose zero fields have stated
// defaults, and a report struct whose JSON form is the contract of the command of the same name. A
// run returns its report also when it fails, with the counts so far. Nothing here prints.
//
// Workloads that kill a process start the running program again (see child.go): whoever runs them
// calls ChildMain first thing in main.
//
// Numbers come from the machine that they were measured on; a report never contains one that was
// not.
package bench
