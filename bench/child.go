package bench

// ChildMain runs a child process if the arguments ask for one; ran is false if they do not. A program that runs
// workloads which kill a process calls it first thing in main.
func ChildMain(args []string) (code int, ran bool) { return 0, false }
