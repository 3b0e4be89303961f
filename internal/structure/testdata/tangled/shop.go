// Package tangled has a circle of three files, and one file outside of it.
package tangled

import "sync/atomic"

// A Shop has methods in other files.
type Shop struct{ best atomic.Pointer[Ware] }

// Best uses a method that another file declares, on a value whose type is from another package.
func (s *Shop) Best() int { return s.best.Load().price() }
