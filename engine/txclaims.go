package engine

// txClaims are the claims of a transaction, in the order they were made.
type txClaims struct {
	set       claimSet
	records   []ClaimRecord // the record that commits, of each of the claims
	altered   []altered     // records that were changed after they were made, in that order
	dataBytes int           // of the records, before and after they were changed
}

// An altered claim is a claim whose record was changed in the same transaction.
type altered struct {
	claim  int // index of it
	before ClaimRecord
}

// add adds a claim with the record that commits.
func (s *txClaims) add(c *candidate, r ClaimRecord) {
	s.set.claims = append(s.set.claims, *c)
	s.records = append(s.records, r)
}

// alter changes the record of a claim.
func (s *txClaims) alter(claim int, change func(*ClaimRecord)) {
	r := &s.records[claim]
	s.altered = append(s.altered, altered{claim, *r})
	change(r)
	s.dataBytes += len(r.Data)
}

// expect copies the place of a prepared event, and those near it.
func (s *txClaims) expect(c *candidate, from *claimSet) {
	near := from.nearOf(c)
	c.place = s.set.take(from, &c.place)
	c.nearAt = len(s.set.near)
	for i := range near {
		s.set.near = append(s.set.near, s.set.take(from, &near[i]))
	}
	c.nearEnd = len(s.set.near)
}

// join moves the claims of a part.
func (s *txClaims) join(part *txClaims) {
	first := len(s.set.claims)
	if part.set.nearVersion > 0 && (s.set.nearVersion == 0 || part.set.nearVersion < s.set.nearVersion) {
		s.set.nearVersion = part.set.nearVersion
	}
	for i := range part.set.claims {
		c := part.set.claims[i]
		s.expect(&c, &part.set)
		s.add(&c, part.records[i])
	}
	s.dataBytes += part.dataBytes
	for _, a := range part.altered {
		s.altered = append(s.altered, altered{first + a.claim, a.before})
	}
	clear(part.set.claims)
	clear(part.altered)
	part.set.claims, part.records, part.altered = part.set.claims[:0], part.records[:0], part.altered[:0]
}

// undo undoes the work since to.
func (s *txClaims) undo(to progress) {
	for n := len(s.altered) - 1; n >= to.altered; n-- {
		a := &s.altered[n]
		s.dataBytes -= len(s.records[a.claim].Data)
		s.records[a.claim] = a.before
	}
	clear(s.altered[to.altered:])
	s.altered = s.altered[:to.altered]
	clear(s.set.claims[to.claims:])
	clear(s.records[min(to.claims, len(s.records)):])
	s.set.claims, s.records = s.set.claims[:to.claims], s.records[:to.claims]
	s.set.arena, s.set.near = s.set.arena[:to.keys], s.set.near[:to.near]
}

// emptied returns no claims, with the same memory.
func (s *txClaims) emptied() txClaims {
	clear(s.records)
	clear(s.altered)
	return txClaims{set: s.set.emptied(), records: s.records[:0], altered: s.altered[:0]}
}
