package engine

// txClaims has the claims of a transaction, in order.
type txClaims struct {
	set       claimSet
	records   []ClaimRecord // the record of each claim at commit
	altered   []altered     // changes of records, in order
	dataBytes int           // bytes of Data in these changes
}

// An altered is a change of a claim's record.
type altered struct {
	claim  int // index of the claim
	before ClaimRecord
}

// add adds a claim with its record at commit.
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

// expect copies the place of a prepared candidate and its adjacent places from another set.
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

// undo undoes everything since to.
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

// emptied returns empty claims that reuse the memory.
func (s *txClaims) emptied() txClaims {
	clear(s.records)
	clear(s.altered)
	return txClaims{set: s.set.emptied(), records: s.records[:0], altered: s.altered[:0]}
}
