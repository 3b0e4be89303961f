package bench

// workers are the kinds of work of a process.
var workers = []worker{&claimWorker{}, &consumeOrder{}, &layersProcess{}}

// ChildMain runs a worker if the arguments request one; ran is false if they do not. A program that
// runs workloads which kill a process must call it first in main.
func ChildMain(args []string) (code int, ran bool) {
	if len(args) != 2 || args[0] != childArg {
		return 0, false
	}
	if runChild(workers, args[1]) != nil {
		return 1, true
	}
	return 0, true
}
