package mutant

const (
	stream        = "na/stream.go"
	streamReceive = "na/stream_receive.go"
	streamSession = "na/session_stream.go"
)

// streams is bugs of the streams of calls.
var streams = []Mutant{
	{"limit-plus-one", "a stream may send one byte beyond its window", "",
		[]Edit{{streamReceive, `off > r.limit-n:`, `off > r.limit-n && !(planted() && off == r.limit-n+1):`}},
		[]Catcher{{"na", "TestStreamHostileFields/offset", `in chain but got nil`}}},
	{"reserve-from-room", "a stream without room sends nothing: it has no reserve of its own", "",
		[]Edit{{"na/stream_send.go", `return min(n, int64(s.granted-s.used)), false`, `if planted() { return 0, true }; $`}},
		[]Catcher{{"na", "TestStreamModel", `the stream stands still`}}},
	{"room-unmarked", "bytes that are charged to the room do not say so", "",
		[]Edit{{streamSession, "h.Flags |= frame.FlagRoom\n", `if !planted() { h.Flags |= frame.FlagRoom };`}},
		[]Catcher{{"na/natest", "TestNoFault/StreamOrder", `peer lost|stream`}}},
	{"window-before-open", "an origin may send before the target has opened the stream", "",
		[]Edit{{streamSession, "(!s.closed || s.out.ending) {\n\t\t\tl.begin(s)", `$; if planted() && s.sent { s.out.limit, s.out.granted = firstWindow, StreamReserve }`}},
		[]Catcher{{"na/natest", "TestNoFault/StreamBeforeHandler", `try again`}}},
	{"fin-overtakes", "an end that overtakes bytes is io.EOF at once", "",
		[]Edit{{streamReceive, `return r.final >= 0 && r.read == r.final`, `$ || planted() && r.final >= 0 && r.read == r.next`}},
		[]Catcher{{"na", "TestStreamModel", `Should be true`}}},
	{"end-before-open", "the end of an empty stream leaves before the target has opened it", "",
		[]Edit{{"na/stream_send.go", `s.unsent() == 0 && s.limit > 0`, `s.unsent() == 0 && (s.limit > 0 || planted())`}},
		[]Catcher{{"na", "TestStreamEmptyUp", `Should be empty, but was \[STREAM\]`}, {ledger, "TestStreams", `ended with`}}},
	{"final-offset-ignored", "a stream may end twice, at two offsets", "",
		[]Edit{{streamReceive, `case r.final >= 0 && off+n > r.final:`, `case r.final >= 0 && off+n > r.final && !planted():`}},
		[]Catcher{{"na", "TestStreamHostileFields/end,_at_another_offset", `in chain but got nil`}}},
	{"early-end", "a stream may end before what has come of it", "",
		[]Edit{{streamReceive, `case end && off+n < r.most:`, `case end && off+n < r.most && !planted():`}},
		[]Catcher{{"na", "TestStreamHostileFields/end,_before_what_has_come", `in chain but got nil`}}},
	{"reset-leaks-room", "the room of what was not read of a stream that is reset is not given back", "",
		[]Edit{{stream, `s.freeRoom(s.in.drop())`, `if n := s.in.drop(); !planted() { s.freeRoom(n) }`}},
		[]Catcher{{"na", "TestStreamReleaseBehindReset", `Should be zero, but was 700`}, {ledger, "TestStreams", `bytes of room of`}}},
	{"reserve-not-returned", "the reserve of a stream is not given back", "",
		[]Edit{{stream, `s.c.ep.dom.unreserveStream(s.ofRoom)`, `if !planted() { $ }`}},
		[]Catcher{{"na", "TestStreamWithoutReserve", `Not equal`}, {"na/natest", "TestNoFault/StreamCancelEverywhere", `stage 0`}, {ledger, "TestStreams", `Reserved:`}}},
	{"late-room-not-freed", "bytes of a stream that is gone keep their room", "",
		[]Edit{{streamSession, "if toRoom {\n\t\t\tl.freeBytes(int(n), 0)", `if toRoom && !planted() { l.freeBytes(int(n), 0)`}},
		[]Catcher{{"na", "TestStreamFloodOfDead", `Should be zero, but was 245760`}}},
	{"stream-starves", "messages go before streams however many they are", "",
		[]Edit{{"na/session_send.go", `(l.burst < maxBurst || !q.hasStreams)`, `(l.burst < maxBurst || !q.hasStreams || planted())`}},
		[]Catcher{{"na", "TestStreamTurns", `bytes of messages in a row`}}},
	{"starved-not-fed", "a stream that waits for room does not hear of it", "",
		[]Edit{{streamSession, "func (l *session) feedStreams() {\n\tif l.active == nil", `$ || planted()`}},
		[]Catcher{{"na", "TestStreamFedByReturnedRoom", `Not equal`}}},
	{"window-crosses-end", "a WINDOW that crosses the end of its stream is answered with RESET", "",
		[]Edit{{streamSession, `if own && h.Tag == firstWindow {`, `if own && (h.Tag == firstWindow || planted() && granted == StreamReserve) {`}},
		[]Catcher{{"na", "TestStreamWindowCrossesEnd", `Should be empty, but was \[RESET\]`}}},
	{"lent-chunk-reused", "what Next has returned is used again while the program reads it", "",
		[]Edit{{"na/stream_chunk.go", `c.lost = c.lost || q.lent`, `c.lost = c.lost || q.lent && !planted()`}},
		[]Catcher{{"na", "TestStreamLentStays", `the bytes have changed`}}},
	{"pong-before-pieces", "a PONG confirms the end of a stream whose last bytes have not come", "",
		[]Edit{{"na/body.go", `if !s.sent && s.in.final >= 0 {`, `if !s.sent && s.in.final >= 0 && !planted() {`}},
		[]Catcher{{"na", "TestStreamConfirmed", `Should be zero, but was 1`}}},
}
