package impi_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// A scope is a small program for two agents. Its messages are sent in order; cancels and receives happen at any time,
// or not before something else is over; packets leave and arrive at any time, in order.
type scope struct {
	config   impi.AgentConfig
	messages []scopeMessage
	cancels  []int     // messages that are canceled, each at any time after it was sent
	receives []scopeRx // in any order
}

type scopeMessage struct {
	from    int // the agent, 0 or 1
	request uint64
	sync    bool
	length  int
}

type scopeRx struct {
	by  int   // the agent
	tag int32 // the index of a message, or AnyTag
}

var scopes = map[string]scope{
	"one": {
		messages: []scopeMessage{{request: 1, sync: true, length: 1}},
		cancels:  []int{0, 0},
		receives: []scopeRx{{1, 0}},
	},
	"one that is not synchronous": {
		messages: []scopeMessage{{request: 1, length: 1}},
		cancels:  []int{0},
		receives: []scopeRx{{1, 0}},
	},
	"long": {
		config:   impi.AgentConfig{MaxPacket: 1, Hiwater: 2, Ackmark: 1},
		messages: []scopeMessage{{request: 1, length: 3}},
		cancels:  []int{0},
		receives: []scopeRx{{1, 0}},
	},
	"long behind long": {
		config:   impi.AgentConfig{MaxPacket: 1, Hiwater: 1},
		messages: []scopeMessage{{request: 1, length: 2}, {request: 2, length: 2}},
		cancels:  []int{0},
		receives: []scopeRx{{1, impi.AnyTag}},
	},
	"two": {
		messages: []scopeMessage{{request: 1, sync: true}, {request: 2, sync: true}},
		cancels:  []int{0, 1},
		receives: []scopeRx{{1, impi.AnyTag}},
	},
	"a number twice": {
		messages: []scopeMessage{{request: 1}, {request: 1, sync: true}},
		cancels:  []int{0, 1},
		receives: []scopeRx{{1, 0}, {1, 1}},
	},
	"a synchronous number twice": {
		config:   impi.AgentConfig{Hiwater: 2, Ackmark: 2},
		messages: []scopeMessage{{request: 1, sync: true}, {request: 1, sync: true}},
		cancels:  []int{0, 1},
		receives: []scopeRx{{1, impi.AnyTag}},
	},
	"a number three times": {
		messages: []scopeMessage{{request: 1}, {request: 1}, {request: 1, sync: true}},
		cancels:  []int{2},
		receives: []scopeRx{{1, 2}, {1, 0}},
	},
	"a small window": {
		config:   impi.AgentConfig{Hiwater: 1, Ackmark: 1},
		messages: []scopeMessage{{request: 1, sync: true}, {request: 2}},
		cancels:  []int{0, 1},
		receives: []scopeRx{{1, 1}},
	},
	"both directions": {
		messages: []scopeMessage{{from: 0, request: 1, sync: true}, {from: 1, request: 1, sync: true}},
		cancels:  []int{0, 1},
		receives: []scopeRx{{0, 1}},
	},
}

// TestEveryInterleaving runs every order of events of each scope, and checks after each event, and at each end, what
// must hold.
func TestEveryInterleaving(t *testing.T) {
	for name, s := range scopes {
		t.Run(name, func(t *testing.T) {
			x := &explorer{t: t, scope: s, seen: map[string]bool{}}
			x.explore(x.replay(nil), nil)
			t.Logf("%d states, %d ends: %d messages received, %d canceled there, %d canceled here",
				len(x.seen), x.ends, x.received, x.destroyed, x.withdrawn)
			require.NotZero(t, x.received)
			require.NotZero(t, x.withdrawn)
			if name != "one that is not synchronous" {
				require.NotZero(t, x.destroyed)
			}
		})
	}
}

// An action is one event at one of the agents.
type action struct {
	at   int // agent
	kind byte
	arg  int
}

const (
	doSend, doCancel, doReceive, doLeave, doArrive = 's', 'c', 'r', 'l', 'a'
)

func (a action) String() string { return fmt.Sprintf("%c%d/%d", a.kind, a.arg, a.at) }

type explorer struct {
	t                                    *testing.T
	scope                                scope
	seen                                 map[string]bool
	ends, received, destroyed, withdrawn int
}

// explore continues w, which is where path led, in every way. Two orders that look the same to each agent are one.
func (x *explorer) explore(w *world, path []action) {
	end := true
	for _, act := range w.enabled() {
		next := append(path[:len(path):len(path)], act)
		key := history(next)
		if x.seen[key] {
			end = false
			continue
		}
		if w == nil {
			w = x.replay(path)
		}
		if !w.do(act) {
			continue // nothing to send
		}
		x.seen[key], end = true, false
		w.path = next
		x.explore(w, next)
		w = nil
	}
	if !end {
		return
	}
	x.ends++
	w.end()
	for _, m := range w.messages {
		switch {
		case m.received > 0:
			x.received++
		case m.left:
			x.destroyed++
		default:
			x.withdrawn++
		}
	}
}

// history is what each of the agents has seen.
func history(path []action) string {
	var of [2][]byte
	for _, a := range path {
		of[a.at] = append(of[a.at], a.kind, byte(a.arg))
	}
	return string(of[0]) + "|" + string(of[1])
}

func (x *explorer) replay(path []action) *world {
	w := newWorld(x.t, x.scope)
	w.path = path
	for _, a := range path {
		w.do(a)
	}
	return w
}

// A world is two agents, the packets between them, and the state of the messages as the test tracks it.
type world struct {
	t        *testing.T
	scope    scope
	agents   [2]*impi.Agent
	wire     [2][][]byte // packets to each
	messages []*worldMessage
	sent     int
	canceled []bool
	posted   []bool
	path     []action // that led here
	doing    action
}

type worldMessage struct {
	send     *impi.Send
	from     int
	started  bool
	left     bool // its first packet has
	arrived  bool
	ended    int
	err      error
	asked    bool
	requests int  // CANCEL packets that have left
	yes      bool // what the reply has to be
	replies  int
	answers  []impi.Answer
	received int
}

func newWorld(t *testing.T, s scope) *world {
	w := &world{t: t, scope: s, canceled: make([]bool, len(s.cancels)), posted: make([]bool, len(s.receives))}
	procs := [2]impi.Proc{procOf(0), procOf(1)}
	for i := range w.agents {
		c := s.config
		c.Local, c.Remote = procs[i:i+1], procs[1-i:2-i]
		w.agents[i] = newAgent(t, c)
	}
	for i, m := range s.messages {
		data := make([]byte, m.length)
		for j := range data {
			data[j] = byte(i)
		}
		w.messages = append(w.messages, &worldMessage{from: m.from, send: &impi.Send{
			From: procs[m.from], To: procs[1-m.from], Request: m.request, Sync: m.sync, Tag: int32(i), Data: data,
		}})
	}
	return w
}

// enabled lists what can happen next.
func (w *world) enabled() (all []action) {
	if w.sent < len(w.messages) {
		m := w.messages[w.sent]
		if !w.busy(m) {
			all = append(all, action{m.from, doSend, w.sent})
		}
	}
	for i, m := range w.scope.cancels {
		if !w.canceled[i] && w.messages[m].started {
			all = append(all, action{w.messages[m].from, doCancel, i})
		}
	}
	for i, r := range w.scope.receives {
		if !w.posted[i] {
			all = append(all, action{r.by, doReceive, i})
		}
	}
	for i := range w.agents {
		all = append(all, action{i, doLeave, 0})
		if len(w.wire[i]) > 0 {
			all = append(all, action{i, doArrive, 0})
		}
	}
	return all
}

// busy reports whether an earlier message of the same number is active, or its cancel has no answer.
func (w *world) busy(m *worldMessage) bool {
	for _, o := range w.messages[:w.sent] {
		if o.from == m.from && o.send.Request == m.send.Request && (o.ended == 0 || o.asked && len(o.answers) == 0) {
			return true
		}
	}
	return false
}

// do does one action and checks what must hold after it. It reports false if there was nothing to do.
func (w *world) do(act action) bool {
	w.doing = act
	a := w.agents[act.at]
	switch act.kind {
	case doSend:
		m := w.messages[act.arg]
		w.ok(a.Send(m.send))
		m.started = true
		w.sent++
	case doCancel:
		w.canceled[act.arg] = true
		w.cancel(w.messages[w.scope.cancels[act.arg]])
	case doReceive:
		w.posted[act.arg] = true
		w.receive(act.at, w.scope.receives[act.arg].tag)
	case doLeave:
		raw, ok := a.NextPacket(nil)
		if !ok {
			return false
		}
		w.leave(act.at, raw)
	case doArrive:
		w.arrive(act.at, popFirst(&w.wire[act.at]))
	}
	w.events()
	return true
}

func (w *world) cancel(m *worldMessage) {
	left, ended := m.left, m.ended > 0
	switch answer := w.agents[m.from].Cancel(m.send); answer {
	case impi.Canceled:
		w.require(!left && !ended, "%d was canceled here though it had left", m.send.Tag)
	case impi.Asked:
		w.require(left, "the peer is asked about %d, which has not left", m.send.Tag)
		m.asked = true
	case impi.TooLate:
		w.require(left || ended, "%d had not left, and it is too late", m.send.Tag)
	default:
		w.require(false, "answer %v", answer)
	}
}

func (w *world) receive(at int, tag int32) {
	r := &impi.Receive{Match: impi.Match{To: procOf(at), Rank: impi.AnyRank, Tag: tag}, Buf: make([]byte, 8)}
	w.ok(w.agents[at].Receive(r))
}

// leave puts a packet on the wire.
func (w *world) leave(from int, raw []byte) {
	p := w.parse(raw)
	w.wire[1-from] = append(w.wire[1-from], raw)
	switch p.Type {
	case impi.PacketData, impi.PacketDataSync:
		m := w.messages[p.Tag]
		w.require(!m.withdrawn(), "%d leaves though it is canceled", p.Tag)
		m.left = true
	case impi.PacketCancel:
		m := w.newestOf(from, p.SrcRequest, func(m *worldMessage) bool { return m.left })
		m.requests++
		w.require(m.requests == 1 && m.asked, "cancel request %d for message %d", m.requests, m.send.Tag)
	}
}

// arrive hands a packet to an agent. The answer to a cancel request is foretold: among the messages of its number the
// one that came last is looked for, and the answer is yes if that can be probed, which it cannot afterwards; the
// others stay as they are.
func (w *world) arrive(at int, raw []byte) {
	p := w.parse(raw)
	var before []bool
	for _, m := range w.messages {
		before = append(before, w.probe(m))
	}
	w.ok(w.agents[at].Input(raw))
	switch p.Type {
	case impi.PacketData, impi.PacketDataSync:
		w.messages[p.Tag].arrived = true
	case impi.PacketCancel:
		newest := w.newestOf(1-at, p.SrcRequest, func(m *worldMessage) bool { return m.arrived })
		newest.yes = before[newest.send.Tag]
		for i, m := range w.messages {
			w.require(w.probe(m) == (before[i] && m != newest), "message %d after a cancel of %d", i, newest.send.Tag)
		}
	case impi.PacketCancelYes, impi.PacketCancelNo:
		m := w.newestOf(at, p.SrcRequest, func(m *worldMessage) bool { return m.requests > 0 })
		m.replies++
		w.require(m.replies == 1, "%d replies to the cancel of %d", m.replies, m.send.Tag)
		w.require(m.yes == (p.Type == impi.PacketCancelYes), "%v for message %d", p.Type, m.send.Tag)
	}
}

// newestOf returns the message of a number for which ok holds and that was sent last.
func (w *world) newestOf(from int, request uint64, ok func(*worldMessage) bool) (found *worldMessage) {
	for _, m := range w.messages {
		if m.from == from && m.send.Request == request && ok(m) {
			found = m
		}
	}
	w.require(found != nil, "no message with number %d", request)
	return found
}

func (w *world) events() {
	for _, a := range w.agents {
		for e, ok := a.NextEvent(); ok; e, ok = a.NextEvent() {
			switch e.Kind {
			case impi.Sent:
				m := w.messages[e.Send.Tag]
				m.ended++
				m.err = e.Err
				w.require(m.ended == 1, "%d has ended %d times", m.send.Tag, m.ended)
				w.require(e.Err == nil || errors.Is(e.Err, impi.ErrCanceled), "%v", e.Err)
			case impi.Answered:
				m := w.messages[e.Send.Tag]
				m.answers = append(m.answers, e.Answer)
				w.require(m.asked && len(m.answers) == 1, "answers to the cancel of %d: %v", m.send.Tag, m.answers)
			case impi.Received:
				w.ok(e.Err)
				m := w.messages[e.Receive.Packet.Tag]
				m.received++
				w.require(m.received == 1, "%d was received %d times", m.send.Tag, m.received)
				w.require(string(e.Receive.Buf[:e.Receive.N]) == string(m.send.Data), "data of %d", m.send.Tag)
			}
		}
	}
	for _, m := range w.messages {
		w.require(!m.withdrawn() || m.received == 0 && !w.probe(m), "%d is canceled, and there", m.send.Tag)
	}
}

// withdrawn reports whether the sender has received the answer that its message is destroyed.
func (m *worldMessage) withdrawn() bool { return m.ended > 0 && m.err != nil }

// end receives what is left, and checks that nothing is lost.
func (w *world) end() {
	for at := range w.agents {
		for range w.messages {
			w.receive(at, impi.AnyTag)
		}
	}
	for moved := true; moved; {
		moved = false
		for at := range w.agents {
			for w.do(action{at, doLeave, 0}) {
				moved = true
			}
			for len(w.wire[at]) > 0 {
				moved = w.do(action{at, doArrive, 0})
			}
		}
	}
	w.events()
	for i, m := range w.messages {
		w.require(m.ended == 1, "%d has not ended", i)
		w.require(m.withdrawn() == (m.received == 0), "%d: %v, received %d times", i, m.err, m.received)
		w.require(m.asked == (len(m.answers) == 1), "%d: answers %v", i, m.answers)
		w.require(m.requests == m.replies, "%d: %d requests, %d replies", i, m.requests, m.replies)
		if m.asked {
			w.require((m.answers[0] == impi.Canceled) == m.withdrawn(), "%d: answer %v", i, m.answers[0])
		}
	}
	for _, a := range w.agents {
		w.require(a.Stats().Held == 0 && a.Stats().HeldBytes == 0 && a.Stats().Stray == 0, "%+v", a.Stats())
	}
}

func procOf(at int) impi.Proc { return [2]impi.Proc{alice, bob}[at] }

func (w *world) parse(raw []byte) impi.Packet {
	p, err := impi.ParsePacket(raw)
	w.ok(err)
	return p
}

func (w *world) ok(err error) { w.require(err == nil, "%v", err) }

func (w *world) require(ok bool, format string, args ...any) {
	if !ok {
		w.t.Helper()
		require.FailNow(w.t, fmt.Sprintf(format, args...), "in %v, at %v", w.path, w.doing)
	}
}

func popFirst(q *[][]byte) []byte {
	first := (*q)[0]
	*q = (*q)[1:]
	return first
}

// probe reports whether m is held by its receiver.
func (w *world) probe(m *worldMessage) bool {
	_, ok := w.agents[1-m.from].Probe(impi.Match{To: m.send.To, Rank: impi.AnyRank, Tag: m.send.Tag})
	return ok
}
