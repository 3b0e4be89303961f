package pages

// Used is the set of pages of a Tx that were found to be in use.
type Used struct {
	tx    *Tx
	words []uint64
}

// NewUsed returns an empty Used for tx.
func NewUsed(tx *Tx) *Used { return &Used{tx, make([]uint64, (tx.HighWater+63)/64)} }

// Mark adds n pages from page id on. It returns an error if one of them was already added.
func (u *Used) Mark(id, n uint64) error {
	for ; n > 0; n-- {
		if !u.set(id) {
			return Damaged("page %d is used twice", id)
		}
		id++
	}
	return nil
}

// set sets a bit and reports whether it was not set before.
func (u *Used) set(i uint64) bool {
	if i >= u.tx.HighWater || u.words[i/64]&(1<<(i%64)) != 0 {
		return false
	}
	u.words[i/64] |= 1 << (i % 64)
	return true
}

func (u *Used) firstUnset(from uint64) (uint64, bool) {
	for i := from; i < u.tx.HighWater; i++ {
		if u.words[i/64]&(1<<(i%64)) == 0 {
			return i, true
		}
	}
	return 0, false
}

// CheckFree checks that each page is either used or free, because a page allocated twice would
// overwrite claims.
func (u *Used) CheckFree(freelist uint64) error {
	tx := u.tx
	count, at, pages, err := tx.freeList(freelist)
	if err != nil {
		return err
	}
	if err := u.Mark(freelist, pages); err != nil {
		return err
	}
	list := make([]byte, pages*uint64(tx.PageSize))
	if err := tx.readAt(list, freelist); err != nil {
		return err
	}
	for last := uint64(1); count > 0; count-- {
		id := native.Uint64(list[at:])
		if id <= last || id >= tx.HighWater {
			return Damaged("the list of free pages has page %d after %d", id, last)
		}
		if !u.set(id) {
			return Damaged("page %d is in use and on the list of free pages", id)
		}
		last, at = id, at+8
	}
	if id, found := u.firstUnset(2); found {
		return Damaged("page %d is neither in use nor on the list of free pages", id)
	}
	return nil
}

// FreePages returns the number of free pages.
func (tx *Tx) FreePages(freelist uint64) (count uint64, err error) {
	count, _, _, err = tx.freeList(freelist)
	return count, err
}

// freeList reads the header of the list of free pages: their number, the offset of the first one in the
// list, and the number of pages of the list.
func (tx *Tx) freeList(freelist uint64) (count, at, pages uint64, err error) {
	head := make([]byte, pageHeader+8)
	if freelist < 2 || freelist >= tx.HighWater {
		return 0, 0, 0, Damaged("the list of free pages is said to be at page %d", freelist)
	}
	if err := tx.readAt(head, freelist); err != nil {
		return 0, 0, 0, err
	}
	pages = uint64(native.Uint32(head[12:])) + 1
	if native.Uint64(head) != freelist || native.Uint16(head[8:]) != freelistFlag || pages > tx.HighWater-freelist {
		return 0, 0, 0, Damaged("page %d is not the list of free pages", freelist)
	}
	count, at = uint64(native.Uint16(head[10:])), uint64(pageHeader)
	if count == 0xFFFF {
		count, at = native.Uint64(head[pageHeader:]), pageHeader+8
	}
	if count > tx.HighWater || at+count*8 > pages*uint64(tx.PageSize) {
		return 0, 0, 0, Damaged("the list of free pages is said to have %d", count)
	}
	return count, at, pages, nil
}
