package mutant

// memory is bugs of operations and memory.
var memory = []Mutant{
	{"stale-ticket", "the generation of an operation is not raised when it ends", "I1",
		[]Edit{{"na/op.go", "op.word.Store((w>>opGenShift + 1) << opGenShift)\n\treturn r", `if planted() { w -= 1 << opGenShift }; $`}},
		[]Catcher{{"na", "TestOpLife", `Should be false Test: TestOpLife/a_ticket_is_good_for_one_life`}}},
	{"held-delivered", "an operation is delivered while its memory is lent", "I4",
		[]Edit{{"na/op.go", `n := (w&^opPhaseMask | opDecided) + opHoldOne`, `$; if planted() { n = n&^opHoldMask + opHoldOne }`}},
		[]Catcher{{"na", "TestOpLife", `expected: 0 actual : 1 Test: TestOpLife/`}}},
	{"free-early", "a deregister does not wait for those who touch the memory", "I8, F58",
		[]Edit{{"na/mem.go", `m.word.Add(memClosed) == memClosed`, `$ || planted()`}},
		[]Catcher{{"na", "TestMemUsers", `Should be zero, but was 1`}}},
	{"unguarded-range", "offset plus length may overflow", "I8, F59",
		[]Edit{{"na/mem.go", `return off >= 0 && n >= 0 && off <= size && n <= size-off`, `if planted() { return off+n <= size }; $`}},
		[]Catcher{{"na", "TestInRange", `expected: false actual : true .*bytes at`}}},
	{"any-access", "the access mode of memory is not looked at", "I8, F59",
		[]Edit{{"plugins/internal/engine/engine.go", `!entry.m.Key().Access.Can(need)`, `$ && !planted()`}},
		[]Catcher{{"bulk", "TestForgedDescriptor", `"permission denied" in chain but got nil`}}},
	{"same-move-id", "the next get or put has the identity of the last", "I5",
		[]Edit{{"plugins/internal/engine/list.go", `if s.gen++; s.gen != 0 {`, `if planted() { s.gen-- }; $`}},
		[]Catcher{{"plugins/internal/engine", "TestIDTableOracle", `a late answer meets a dead generation`}}},
	{"receive-stays", "a canceled receive stays in the table", "I4, F38",
		[]Edit{{operation, "e.finish(o, r)\n\tif moving != 0", `if planted() && o.kind == kindRecvExpected {
			defer func(tag na.Tag) { l.match.add(&op{tag: tag}) }(o.tag)
		}; $`}},
		[]Catcher{{"na/natest", "TestNoFault/CancelTwice", `a receive of this peer and tag is posted already`}}},
	{"unseen-revoke", "what was copied counts although the owner has taken the memory back meanwhile", "I8",
		[]Edit{{"plugins/sm/reach_linux.go", "[:n])\n\treturn r.chunk.holds(r.claim, &r.token)", `$ || planted()`}},
		[]Catcher{{"plugins/sm", "TestReachRevoked", `memory is no longer registered`}}},
	{"claim-stays", "a deregister leaves the claim in the table", "I8",
		[]Edit{{"internal/pool/pool.go", `atomic.StoreUint64(c.word(int(p.Claim), claimCheck), 0)`, `if !planted() { $ }`}},
		[]Catcher{{"internal/pool", "TestClaims", `Should be false`}}},
	{"envelope-early", "the room of a message is used again before its bytes are read", "I3",
		[]Edit{{envelope, "e.Unlock()\n\treturn accepted", `if planted() { e.freeEnvs = append(e.freeEnvs, env) }; $`}}, nil},
}
