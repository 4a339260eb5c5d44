package mutant

const (
	credit   = "plugins/internal/engine/credit.go"
	room     = "plugins/internal/engine/room.go"
	frame    = "plugins/internal/frame/frame.go"
	session  = "plugins/internal/engine/session.go"
	admit    = "plugins/internal/engine/admit.go"
	liveness = "plugins/internal/engine/liveness.go"
)

// sessions is bugs of sessions.
var sessions = []Mutant{
	{"credit-on-cancel", "a cancel at the origin gives the target's envelope back", "HTTP/2 rapid reset, I11",
		[]Edit{{operation, "case kindPut, kindGet:\n\t\tif moving = o.id", `case kindRecvExpected: if planted() { l.returnCredit() }; $`}},
		[]Catcher{{"hg", "TestCancelTenThousand",
			`envelopes were guaranteed|credit \d+ after \d+, \d+ used|Messages: the session is the first`}}},
	{"credit-plus-one", "a sender uses one envelope more than there are", "I11, F65",
		[]Edit{{credit, `case free <= 0:`, `case planted() && free == 0: $`}},
		[]Catcher{{"plugins/internal/engine", "TestCreditOracle", `Messages: envelopes in use`}}},
	{"credit-leaks", "a message that was withdrawn keeps its envelope", "I11",
		[]Edit{{withdraw, "l.e.accept(env)\n\tl.e.withdrawn(env)", `if planted() { return true }; $`}}, nil},
	{"unbounded", "nobody counts envelopes", "I10, F65",
		[]Edit{
			{credit, `switch free := l.free(); {`, `$ case planted():`},
			{deliver, `int32(l.announced-uint32(next)) < 0`, `$ && !planted()`},
		},
		[]Catcher{{"hg", "TestRapidReset", `is not less than or equal to "8"`}}},
	{"room-twice", "room is given back twice", "I11",
		[]Edit{{room, `r.held -= int64(env.Taken)`, `$; if planted() { r.freed += uint64(env.Taken) }`}},
		[]Catcher{{"na/natest", "TestNoFault/RoomComesBack", `expected: 4 actual : \d.*room in round`}}},
	{"room-leaks", "room is never given back", "I11",
		[]Edit{{room, `r.freed += uint64(env.Taken)`, `if !planted() { $ }`}},
		[]Catcher{{"na/natest", "TestNoFault/RoomComesBack", `the room is back: not after`}}},
	{"room-early", "room is given back, and its bytes used again, when a message is accepted", "I11, I9",
		[]Edit{{"plugins/internal/engine/envelope.go", `e.stats.Envelopes--`, `$; if planted() { env.Link.(*Link).freeRoom(env) }`}},
		[]Catcher{{"na/natest", "TestNoFault/RoomComesBack", `room of messages that are accepted and not freed`}}},
	{"room-unchecked", "nobody counts room", "I10",
		[]Edit{{room, `l.room.told-l.room.taken < uint64(need)`, `$ && !planted()`}},
		[]Catcher{{"plugins/internal/engine", "TestRoomOverstepped", `Expected error with "protocol error" in chain but got nil`}}},
	{"starved-forgot", "messages that wait for an envelope do not hear of credit", "I7",
		[]Edit{{credit, "l.freeKept()\n\tl.feedStarved()", `if planted() { l.freeKept(); return }; $`}}, nil},
	{"close-forgets", "the end of a session forgets the messages that wait for an envelope", "I1, I16",
		[]Edit{{session, `for o := q.list.head; o != nil; o = q.list.head {`, `if planted() && q.list == &l.starved { continue }; $`}}, nil},
	{"no-crc", "checksums are not looked at", "F25",
		[]Edit{
			{frame, `crcFront(b[:h.Size()]) != h.CRC`, `$ && !planted()`},
			{frame, `crcFront(b) != h.CRC`, `$ && !planted()`},
		}, nil},
	{"late-crc", "the checksum of a message is looked at after it has been delivered", "F25",
		[]Edit{{"plugins/internal/stream/in.go", `if err := h.Verify(b[:total]); err != nil {`,
			`$; if planted() { _ = in.deliver(&h, b[h.Size():total]) }`}}, nil},
	{"any-incarnation", "a peer that restarted is taken for the one before", "I15, F11",
		[]Edit{{admit, `old.peer.Incarnation != g.Incarnation`, `$ && !planted()`}},
		[]Catcher{{"plugins/tcp", "TestRestartUnnoticed", `does not contain 0xc`}}},
	{"rebinds", "an address bound to a session that has ended leads to the next one", "I15, F11",
		[]Edit{{session, `int(s&0xff) == e.id`, `$ && !planted()`}},
		[]Catcher{{"bulk", "TestPeerReplaced", `expected: "peer lost" in chain: .*the owner of the memory refused`}}},
	{"user-heartbeats", "heartbeats are answered only where the user calls Progress", "F56",
		[]Edit{{deliver, `l.pong, l.pongTag = true, h.Tag`, `if planted() && planted.CalledBy("na.(*assist)") { break }; $`}},
		[]Catcher{{"hg", "TestNobodyDrivesTheTarget", `expected: "timed out" in chain: .*the peer was silent for`}}},
	{"silence-ignored", "a silent peer is never given up", "F9, F28, I7",
		[]Edit{{liveness, `case l.silent >= timeout:`, `case planted(): $`}},
		[]Catcher{{"na/natest", "TestNoFault/FrozenPeer", `ends: not after .*rule FrozenPeer: `}}},
	{"own-freeze-blames", "a process that was frozen takes its peers for lost", "F10",
		[]Edit{
			{liveness, `passed = min(now-e.lastTick, 2*e.tickEvery())`, `$; if planted() { passed = now - e.lastTick }`},
			{liveness, `late <= e.grace()`, `$ || planted()`},
		},
		[]Catcher{{"plugins/internal/engine", "TestOwnFreezeAccusesNobody", `Messages: the session after a freeze`}}},
	{"impi-older-destroyed", "a cancel destroys an older message of its number when the newest has been received", "C23",
		[]Edit{{"impi/envelope.go", `delete(e.pair.newest, e.packet.SrcRequest)`,
			`if planted() { for x := a.held.Back(); x != nil; x = x.Prev() { if o := x.Value.(*envelope); o.pair == e.pair && o.packet.SrcRequest == e.packet.SrcRequest { e.pair.newest[o.packet.SrcRequest] = o; return } } }; $`}},
		[]Catcher{
			{"impi", "TestC23CT21OlderIsNotMeant", `CANCELYES for request 1, which was received`},
			{"impi", "TestC23CT22Detached", `expected: 0x6 actual : 0x5`},
		}},
	{"impi-place-lost", "a message of IMPI that was destroyed keeps its place in the window", "C13",
		[]Edit{{"impi/input.go", "a.countReceived(pr)\n\t\treply.Type", `if planted() { reply.Type = PacketCancelYes; return a.answer(pr, reply) }; $`}},
		[]Catcher{{"impi", "TestC13CT12WindowComesBack", `expected: 0x0 actual : 0x1`}}},
}
