package memtable

import "testing"

// The memory of a table is not Go's.
func TestViewWhoseFunctionPanicsIsReleased(t *testing.T) {
	m := New(1 << 20)
	table := m.Active()
	func() {
		defer func() { _ = recover() }()
		_, _ = m.View(func(*View) error { panic("the store panics") })
	}()
	m.Abandon()
	if !table.IsFreed() {
		t.Error("the table still has a user")
	}
}
