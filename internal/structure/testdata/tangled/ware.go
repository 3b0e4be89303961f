package tangled

// A Ware has a price.
type Ware struct{ cents int }

func (w *Ware) price() int { return w.cents + tax(w.cents) }
