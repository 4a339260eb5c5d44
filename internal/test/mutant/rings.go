package mutant

const (
	sm      = "plugins/sm"
	ring    = sm + "/internal/ring"
	ringOut = ring + "/out.go"
	ringIn  = ring + "/in.go"
	ringEnd = ring + "/end.go"
)

// ringMutants is bugs of shared memory.
var ringMutants = []Mutant{
	{"takes-any-file", "who listens on sm removes whatever has the name", "",
		[]Edit{{"plugins/sm/place_linux.go", `why := inTheWay(path, marked || o.ownsDir()); why != ""`, `$ && !planted()`}},
		[]Catcher{{"plugins/sm", "TestFilesOfOthers", `Messages: poetry`}}},
	{"sweeps-any-file", "the sweep of sm takes every lock file for one of ours", "",
		[]Edit{{"plugins/sm/lock_linux.go", `err != nil || !marked || inTheWay(path, marked) != ""`, `!planted() && ($)`}},
		[]Catcher{{"plugins/sm", "TestFilesOfOthers", `"notes.qslock"`}}},
	{"ring-publish-early", "a message is published before its body is written", "I3, F07",
		[]Edit{{ringOut, `o.words[i] = commit(o.head, m)`, `$; if planted() { e.own.store(o.base+i*descSize, o.words[i]) }`}},
		[]Catcher{{ring, "TestHalfWritten", `Should be false`}}},
	{"ring-late-look", "a side that is about to sleep does not look again after it has said so", "I7",
		[]Edit{{ringEnd, "step(Arm)\n\treturn e.Look()", `step(Arm); return e.Look() && !planted()`}},
		[]Catcher{{ring, "TestEveryOrderOfSleep", `asleep for ever: \[leader\]`}}},
	{"ring-one-bell", "a peer is woken from its first sleep only", "I7",
		[]Edit{{ringEnd, `n == 0 || n == e.rung`, `$ || planted() && e.rung != 0`}},
		[]Catcher{{ring, "TestBell", `Messages: another sleep`}}},
	{"ring-long-envelope", "a body may be longer than an envelope", "F85",
		[]Edit{{ringIn, `t.Len > len(buf) ||`, `t.Len > len(buf) && !planted() ||`}},
		[]Catcher{{ring, "TestHostile/longer_than_an_envelope", `invalid data from the peer in shared memory" in chain`}}},
	{"ring-long-slot", "a body may be longer than its slot", "F85",
		[]Edit{{ringIn, `if t.Len > SlotSize {`, `if t.Len > SlotSize && !planted() {`}},
		[]Catcher{{ring, "TestHostile/longer_than_a_slot", `invalid data from the peer in shared memory" in chain`}}},
	{"ring-read-twice", "the length of a message is read again after it was looked at", "F85",
		[]Edit{{ringIn, "step(Consume)\n", "$; if planted() { w = d.load(descCommit) }\n"}},
		[]Catcher{{ring, "TestReadsOnce", `invalid body of \d+ bytes at slot`}}},
	{"ring-taken-unchecked", "a peer may have taken more than was sent", "F85",
		[]Edit{{ringOut, `taken-o.taken > o.published-o.taken`, `$ && !planted()`}},
		[]Catcher{{ring, "TestHostile/more_taken_than_sent", `invalid data from the peer in shared memory" in chain`}}},
	{"ring-slot-twice", "a slot is used again while a message is in it", "I3, I11",
		[]Edit{{ringOut, `e.free &^= 1 << at`, `if !planted() { $ }`}},
		[]Catcher{{ring, "TestSlots", `is not less than`}}},
	{"ring-block-early", "room for a body is free before the peer has read it", "I3",
		[]Edit{{ringOut, `e.placed = append(e.placed, b)`, `$; if planted() { e.Drop(b) }`}},
		[]Catcher{{ring, "TestBlocks", `Should be true`}}},
	{"sm-copy-unmapped", "memory is given back while a body is copied there, or a program reads into it", "I3",
		[]Edit{{sm + "/peer_linux.go", `if p.closed && p.filling == 0 {`, `if p.closed && (p.filling == 0 || planted()) {`}},
		[]Catcher{{sm, "TestCloseBelowCopy", `contexts that were closed below a copy`}, {sm, "TestStreamBelowRead", `the area is left, and the segment of the raw peer`}}},
	{"ring-void-leaks", "a piece that was given up keeps its slot", "I10",
		[]Edit{{ringOut, `e.free |= 1 << s.slot`, `if !planted() { $ }`}},
		[]Catcher{{ring, "TestVoid", `Messages: after \d+ pieces that were given up`}}},
	{"sm-last-words", "what a peer sent before it died is dropped if it had not rung", "F07",
		[]Edit{{sm + "/peer_linux.go", `for p.read() {`, `for !planted() && p.read() {`}},
		[]Catcher{{sm, "TestFramesBeforeExit", `Messages: its last message`}}},
	{"sm-unsealed", "memory is mapped that the peer can take away", "F84",
		[]Edit{{"internal/memfd/memfd_linux.go", `got&seals != seals`, `$ && !planted()`}},
		[]Catcher{{sm, "TestMapMemory", `An error is expected but got nil`}}},
	{"sm-any-bell", "a descriptor is written to that is no bell", "F84",
		[]Edit{
			{sm + "/packet_linux.go", `ferr != nil || flags&unix.O_NONBLOCK == 0`, `!planted() && ($)`},
			{sm + "/packet_linux.go", `err == nil && string(path[:n])`, `!planted() && $`},
		},
		[]Catcher{{sm, "TestMapMemory", `Messages: the bell waits`}}},
	{"sm-door-spins", "a process without descriptors looks at its door again and again", "F72",
		[]Edit{{sm + "/acceptor_linux.go", `c.watchListenerLocked(false)`, `if !planted() { $ }`}},
		[]Catcher{{sm, "TestOutOfDescriptors", `it spins`}}},
}
