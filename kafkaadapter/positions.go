package kafkaadapter

// notePositions logs once for each topic that records of it have no id, unless the route asks for
// none.
func notePositions(p *partition) {
	rules := &p.route.Identify
	if rules.Payload == nil && rules.IDHeaders != nil && len(rules.IDHeaders) == 0 {
		return
	}
	if _, noted := p.c.positions.LoadOrStore(p.pos.Topic, true); !noted {
		p.log.Warn("records have no id, and their position identifies them: a copy that the producer sends again is handled again",
			"hint", "set Route.Identify so that it finds the id, or Rules.IDHeaders to an empty list if positions are meant")
	}
}
