package tangled

const rate = 5

// A local name of another file does not count as a use of it.
func local() int {
	tax := rate
	return tax
}

var _ = local
