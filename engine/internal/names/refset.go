package names

// A refSet is a set of numbers, as a bitmap.
type refSet struct{ bits []uint64 }

func (s *refSet) has(ref uint64) bool {
	word := ref / 64
	return word < uint64(len(s.bits)) && s.bits[word]&(1<<(ref%64)) != 0
}

func (s *refSet) add(ref uint64) {
	s.grow(int(ref/64) + 1)
	s.bits[ref/64] |= 1 << (ref % 64)
}

func (s *refSet) addAll(other *refSet) {
	s.grow(len(other.bits))
	for i, bits := range other.bits {
		s.bits[i] |= bits
	}
}

func (s *refSet) remove(ref uint64) {
	if s.has(ref) {
		s.bits[ref/64] &^= 1 << (ref % 64)
	}
}

func (s *refSet) grow(words int) {
	if more := words - len(s.bits); more > 0 {
		s.bits = append(s.bits, make([]uint64, more)...)
	}
}
