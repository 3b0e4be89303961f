// Package tangled has a circle of three files, and one file that is in none.
package tangled

import "sync/atomic"

// A Shop has methods in other files.
type Shop struct{ best atomic.Pointer[Ware] }

// Best uses a method that another file declares, of a value whose type is another package's.
func (s *Shop) Best() int { return s.best.Load().price() }
