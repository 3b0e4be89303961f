package tangled

func tax(cents int) int {
	var s *Shop
	if s.Open() {
		return cents / rate
	}
	return 0
}

// Open is a method of a type of another file.
func (s *Shop) Open() bool { return s != nil }
