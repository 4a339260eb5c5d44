package mutant

// packets is bugs of the protocol of udp.
var packets = []Mutant{
	{"repeated-ack-resends", "an acknowledgment that says nothing new sends the window again", "I2",
		[]Edit{{arq + "ack.go", `advanced := l.una != p.ack`, `$; if planted() && !advanced && l.una != s.high { a.goBack(i) }`}},
		[]Catcher{{arqPkg, "TestScripts/ut11-same-ack", `Not equal`}}},
	{"any-ack-resets-timer", "an acknowledgment that does not advance restarts the timer of the left edge", "I10",
		[]Edit{{arq + "ack.go", "if advanced {\n", "if advanced || planted() && l.una != s.high {\n"}},
		[]Catcher{{arqPkg, "TestUT10NotStarved", `the timer never expires`}}},
	{"no-backoff", "the timeout of a peer that does not answer stays what it is", "U13",
		[]Edit{{arq + "rto.go", `return min(a.rto()<<min(tries, 16), a.m.cfg.MaxRTO)`, `if planted() { return a.rto() }; $`}},
		[]Catcher{{arqPkg, "TestScripts/ut08-blackhole", `Not equal`}}},
	{"placed-twice", "a packet of bulk data that came out of order is placed again when it is repeated", "I3",
		[]Edit{{arq + "lane1.go", `r.bits.has(ahead) {`, `r.bits.has(ahead) && !planted() {`}},
		[]Catcher{{arqPkg, "TestUT1ExactlyOnceInOrder", `bytes placed: each once`}}},
	{"wide-go-back", "messages go on filling the window of a path that loses packets", "U2",
		[]Edit{{arq + "lane0.go", `if a.m.cfg.Profile == Modern {`, `if a.m.cfg.Profile == Modern && !planted() {`}},
		[]Catcher{{arqPkg, "TestCallsUnderLoss", `packets were sent again`}}},
	{"void-forgotten", "a packet of a piece that was given up is sent again as if it were not", "I4",
		[]Edit{{arq + "send.go", "if pc.void {\n\t\tp.flags", "if pc.void && !planted() {\n\t\tp.flags"}},
		[]Catcher{{arqPkg, "TestFinishDetached", `sent after its user has left`}}},
	{"bulk-before-open", "bulk data is placed before the frame that opens it", "I3",
		[]Edit{{arq + "lane1.go", `if p.flags&flagAfter != 0 && `, `if !planted() && p.flags&flagAfter != 0 && `}},
		[]Catcher{{arqPkg, "TestScripts/lane1-after", `Not equal`}}},
	{"anybodys-cookie", "a cookie is good at every address", "F83",
		[]Edit{{arq + "handshake.go", `mac.Write(addr[:])`, `if !planted() { $ }`}},
		[]Catcher{{arqPkg, "TestForgedHello", `expected: 1 actual : 2`}}},
	{"repeated-report-goes-back", "every report of one loss sends the window again", "U15",
		[]Edit{{arq + "lane0.go", `case before(l.una, s.recover) && !again:`, `case before(l.una, s.recover) && !again && !planted():`}},
		[]Catcher{{arqPkg, "TestUT12OneRecoverySpaced", `reports of one loss`}}},
	{"no-linger", "an association is forgotten as soon as it has said everything", "U23",
		[]Edit{{arq + "fin.go", `a.report(End{Outcome: Clean})`, `if planted() { a.flight.finDue = now + 1 }; $`}},
		[]Catcher{{arqPkg, "TestUT22Release", `stays to acknowledge once more`}}},
}

const arqPkg, arq = "plugins/udp/internal/arq", arqPkg + "/"
