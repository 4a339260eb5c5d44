package sim_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A hostilePeer is a peer that sends frames according to a program of bytes: legal ones with altered
// fields, at the wrong time, twice, cut, damaged, or none. It remembers received frames, to refer
// to live objects.
type hostilePeer struct {
	t    testing.TB
	host *sim.RawHost
	conn *sim.Raw
	in   program

	inc    byte // of its incarnation
	mute   bool // it does not read
	greets bool // it has sent HELLO on this connection
	torn   bool // the bytes that it has sent on this connection are no sequence of frames
	over   bool // the other side has ended the connection
	gone   bool // it has ended the connection itself, or has sent GOAWAY
	bytes  []byte

	credit uint32 // that it announces
	sent   uint64 // its unexpected messages
	last   []byte // the last frame
	rest   []byte // of a frame that was cut

	ops    []uint64 // operations and numbers of messages that the victim has named
	tags   []uint64
	gets   []frame.Header
	puts   []frame.Header
	tokens [][16]byte
	pongs  int
	code   na.Code // of the last GOAWAY
}

// A program is bytes that are used up.
type program []byte

func (p *program) next() byte {
	if len(*p) == 0 {
		return 0
	}
	b := (*p)[0]
	*p = (*p)[1:]
	return b
}

// sparse is a byte in which few bits are set.
func (p *program) sparse() byte {
	b := p.next()
	return b & p.next()
}

// pickOne picks one of some values; the last ones, which are the newest, are preferred.
func pickOne[T any](p *program, of []T) (v T) {
	if len(of) == 0 {
		p.next()
		return v
	}
	return of[len(of)-1-int(p.next())%len(of)]
}

const (
	hostileName  = "sim://hostile"
	hostileGives = 4 // envelopes
)

func (h *hostilePeer) connect() {
	if h.conn != nil && !h.gone && !h.over {
		h.conn.Close()
	}
	if h.conn = h.host.Accept(); h.conn == nil { // the victim has not dialled
		h.conn = h.host.Dial("sim://victim", 0)
	}
	h.greets, h.torn, h.over, h.gone, h.bytes, h.rest, h.last = false, false, false, false, nil, nil, nil
	h.credit, h.sent, h.pongs, h.code = hostileGives, 0, 0, 0
}

// sendBytes sends bytes, after the rest of a frame that was cut.
func (h *hostilePeer) sendBytes(b []byte) {
	if h.conn == nil {
		h.connect()
	}
	h.conn.Write(append(h.rest, b...))
	h.rest = nil
}

// sendFrame sends a frame whose payload is n bytes.
func (h *hostilePeer) sendFrame(f frame.Header, n int) {
	payload := bytes.Repeat([]byte{'h'}, n)
	switch f.Kind {
	case frame.Hello, frame.Unexpected, frame.Expected, frame.Goaway:
		h.last = f.Append(nil, payload)
	default: // DATA, and kinds that must have none
		h.last = append(f.AppendFront(nil, n), payload...)
	}
	h.sendBytes(h.last)
}

// sendHonestFrame sends a frame with the credit that belongs into it.
func (h *hostilePeer) sendHonestFrame(f frame.Header, n int) {
	f.Credit = h.credit
	h.sendFrame(f, n)
}

func (h *hostilePeer) hello(alter byte) {
	g := frame.Greeting{
		Versions: frame.Versions(), Incarnation: [16]byte{h.inc, 0xff}, Listen: hostileName, Host: "sim",
		Envelopes: hostileGives, Eager: 4096, Features: frame.FeatureWithdraw,
	}
	v := h.in.next
	switch alter % 16 {
	case 1:
		g.Versions.Newest = uint16(v())
	case 2:
		g.Envelopes = uint32(v()) << v()
	case 3:
		g.Eager = uint32(v()) << v()
	case 4:
		g.Target, g.Context = uint16(v()), uint16(v())
	case 5:
		g.Features = uint64(v()) | uint64(v())<<56
	case 6:
		g.Need, g.Want = uint32(v()), uint32(v())
	case 7:
		g.Listen = []string{"", "sim://bystander", "sim://victim", "sim://@00", "tcp://x", "sim://", "sim://bystander#1"}[v()%7]
	case 8:
		g.Label = []byte{v()}
	case 9:
		g.Incarnation = [16]byte{v()}
	case 10:
		g.Label, g.Host = make([]byte, int(v())*20), string(make([]byte, int(v())*20))
	}
	f := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
	payload := g.Append(nil)
	switch alter >> 4 {
	case 13: // bytes of the labels
		payload[int(v())%len(payload)] ^= 1 << (v() % 8)
	case 14:
		payload = payload[:int(v())%len(payload)]
	case 15:
		f.Tag++
	}
	h.last = f.Append(nil, payload)
	h.sendBytes(h.last)
	h.greets = true
}

// drawEdge is a number near the edges.
func (h *hostilePeer) drawEdge() int64 {
	b := h.in.next()
	switch b >> 5 {
	case 0:
		return int64(b)
	case 1:
		return regionSize - 16 + int64(b&31)
	case 2:
		return math.MaxInt64 - int64(b&31)
	case 3:
		return 1 << (b & 31)
	case 4:
		return -int64(b & 31)
	case 5:
		return 1<<(b&31) - 1
	}
	return int64(b) * 16
}

// sendNext makes the peer send one frame.
func (h *hostilePeer) sendNext(what byte) {
	v := h.in.next
	switch what % 20 {
	case 0:
		h.hello(0)
	case 1:
		h.hello(v())
	case 2, 3: // any frame at all
		f := frame.Header{
			Kind: frame.Kind(v()%byte(frame.Held) + 1), Flags: h.in.sparse() & 0x0f, Credit: h.credit, Op: pickOne(&h.in, h.ops), Tag: pickOne(&h.in, h.tags),
			Tail: frame.Tail{Token: pickOne(&h.in, h.tokens), Offset: max(h.drawEdge(), 0), Length: max(h.drawEdge(), 0)},
		}
		switch alter := v(); alter % 8 {
		case 1:
			f.Credit += uint32(h.drawEdge())
		case 2:
			f.Op = uint64(h.drawEdge())
		case 3:
			f.Tag = uint64(h.drawEdge())
		case 4:
			f.Context = uint16(v())
		case 5:
			f.Tail.Token[v()%16] ^= 1 << (v() % 8)
		case 6:
			f.Op += uint64(v()) << 32
		}
		h.sendFrame(f, int(v())*int(v()%32))
	case 4: // a message, while there is an envelope
		h.sent++
		h.sendHonestFrame(frame.Header{Kind: frame.Unexpected, Op: h.sent, Tag: uint64(v())}, int(v()))
	case 5: // an answer
		h.sendHonestFrame(frame.Header{Kind: frame.Expected, Tag: pickOne(&h.in, h.tags), Flags: v() & frame.FlagTell}, int(v()))
	case 6: // a piece of a get of the victim
		g := pickOne(&h.in, h.gets)
		h.sendHonestFrame(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: g.Op, Tag: uint64(v())}, int(min(g.Tail.Length, int64(v()))))
	case 7: // all of it
		g := pickOne(&h.in, h.gets)
		h.sendHonestFrame(frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: g.Op}, int(min(g.Tail.Length, 1<<16)))
		h.sendHonestFrame(frame.Header{Kind: frame.Done, Op: g.Op}, 0)
	case 8:
		h.sendHonestFrame(frame.Header{Kind: frame.Done, Op: pickOne(&h.in, h.gets).Op, Tag: uint64(v())}, 0)
	case 9:
		h.sendHonestFrame(frame.Header{Kind: frame.Done, Op: pickOne(&h.in, h.puts).Op, Tag: uint64(h.in.sparse())}, 0)
	case 10, 11: // a put or a get of its own
		f := frame.Header{Kind: frame.Get, Op: uint64(v() % 8), Tail: frame.Tail{Token: pickOne(&h.in, h.tokens), Offset: max(h.drawEdge(), 0), Length: max(h.drawEdge(), 0)}}
		if what%20 == 10 {
			h.sendHonestFrame(f, 0)
			break
		}
		f.Kind = frame.Put
		h.sendHonestFrame(f, 0)
		h.sendHonestFrame(frame.Header{Kind: frame.Data, Op: f.Op}, int(min(f.Tail.Length, int64(v())*16)))
	case 12:
		h.sendHonestFrame(frame.Header{Kind: []frame.Kind{frame.Withdraw, frame.Abandon, frame.Cancel}[v()%3], Op: uint64(v()) % (h.sent + 2)}, 0)
	case 13:
		h.credit += uint32(v() % 8)
		f := frame.Header{Kind: []frame.Kind{frame.Credit, frame.Ping, frame.Pong, frame.Cancel, frame.Probe, frame.Probed, frame.Held}[v()%7]}
		if f.Kind >= frame.Probe {
			f.Op, f.Tag = uint64(v()%9), uint64(v()%4)<<(v()%2*32)
		}
		h.sendHonestFrame(f, 0)
	case 14: // the last one again, damaged perhaps
		b := bytes.Clone(h.last)
		if flip := v(); len(b) > 0 && flip%2 == 1 {
			b[(int(flip)+int(v()))%len(b)] ^= 1 << (flip >> 5)
			h.torn = true
		}
		h.sendBytes(b)
	case 15: // the next bytes begin inside another frame, or are its rest
		f := frame.Header{Kind: frame.Ping, Credit: h.credit}
		b := f.AppendFront(nil, 0)
		n := int(v()) % len(b)
		h.sendBytes(b[:n])
		if h.rest = b[n:]; v()%2 == 0 {
			h.rest, h.torn = nil, true
		}
	case 16:
		f := frame.Header{Kind: frame.Goaway, Tag: uint64(v())}
		h.sendFrame(f, int(v())*4)
		h.gone = true
	case 17:
		if h.conn != nil {
			h.conn.Close()
			h.gone = true
		}
	case 18:
		h.inc += v() % 2
		h.connect()
	case 19:
		h.mute = !h.mute
	}
}

// readFrames reads the frames of the victim and remembers their ids. They must be whole and right,
// whatever the peer has sent.
func (h *hostilePeer) readFrames() {
	if h.conn == nil || h.mute {
		return
	}
	b, over := h.conn.Read()
	h.bytes = append(h.bytes, b...)
	h.over = h.over || over
	for len(h.bytes) >= frame.HeaderSize && len(h.bytes) >= frame.Need(h.bytes) {
		f, err := frame.Parse(h.bytes)
		if err != nil {
			h.t.Fatalf("the victim sends %x: %v", h.bytes, err)
		}
		end := f.Size() + f.Payload()
		if len(h.bytes) < end {
			break
		}
		if f.Flags&frame.FlagPayload != 0 && f.Verify(h.bytes[:end]) != nil {
			h.t.Fatalf("the victim sends %v with a wrong checksum", &f)
		}
		h.heard(f)
		h.bytes = h.bytes[end:]
	}
	// Bulk data may end anywhere: its memory is not the victim's to send any more. The kind is the
	// fifth byte of a frame.
	if over && len(h.bytes) > 4 && !frame.Kind(h.bytes[4]).Bulk() {
		h.t.Fatalf("the victim ends the connection in the middle of a message: %x", h.bytes[:min(len(h.bytes), 64)])
	}
}

func (h *hostilePeer) heard(f frame.Header) {
	const most = 16
	keep := func(to *[]frame.Header) { *to = append((*to)[max(0, len(*to)-most):], f) }
	switch f.Kind {
	case frame.Get:
		keep(&h.gets)
	case frame.Put:
		keep(&h.puts)
	case frame.Pong:
		h.pongs++
	case frame.Goaway:
		if h.code = na.Code(f.Tag); h.code == na.OK || f.Tag > 255 || f.Payload() > 512 {
			h.t.Fatalf("the victim sends BYE with %v", &f)
		}
	}
	if f.Op != 0 {
		h.ops = append(h.ops[max(0, len(h.ops)-most):], f.Op)
	}
	h.tags = append(h.tags[max(0, len(h.tags)-most):], f.Tag)
}

// regionSize is the length of the victim's memory that peers may reach.
const regionSize = 1000

// A user is the program above an endpoint. It counts the operations that it has started, and those
// that have ended.
type user struct {
	t      testing.TB
	nctx   *na.Context
	posted int
	ended  int
	works  []*operation
	held   []*na.Envelope
	late   []func() // checks to make at the end
}

type operation struct {
	op    *na.Op
	what  string
	ended int
	r     na.Result
}

// start begins an operation; then, if it is not nil, runs when it has ended.
func (u *user) start(what string, run func(op *na.Op) error, then func(r na.Result)) *operation {
	w := &operation{what: what}
	w.op = u.nctx.NewOp(func(_ *na.Op, r na.Result) {
		w.ended++
		w.r = r
		u.ended++
		if then != nil {
			then(r)
		}
	})
	if err := run(w.op); err != nil {
		w.what = "" // it must not end
	} else {
		u.posted++
	}
	u.works = append(u.works, w)
	return w
}

// into returns memory for peers' bytes with a margin; its contents at the end of the operation must
// not change later.
func (u *user) into(n int) (buf []byte, ended func(r na.Result)) {
	arena := bytes.Repeat([]byte{'#'}, n+32)
	buf = arena[16 : 16+n : 16+n]
	var at []byte
	u.late = append(u.late, func() {
		if !bytes.Equal(arena[:16], arena[16+n:]) || arena[0] != '#' {
			u.t.Fatalf("bytes beside the memory of an operation were written")
		}
		if at != nil && !bytes.Equal(at, buf) {
			u.t.Fatalf("the memory of an operation was written after its end")
		}
	})
	return buf, func(na.Result) { at = bytes.Clone(buf) }
}

// A hostileTest is a victim with a hostile peer and an honest one, the bystander.
type hostileTest struct {
	t       testing.TB
	w       *sim.World
	victim  *user
	other   *user
	hostile *hostilePeer
	in      *na.Mem // of the victim: peers may put
	out     *na.Mem // peers may get
	arena   []byte  // around in
	lent    []byte
	calls   int // of the bystander
	sent    []na.Result
}

const bystanders = na.Tag(1) << 40 // in the tags of the bystander

func newHostileTest(t testing.TB, in []byte) *hostileTest {
	f := &hostileTest{t: t, w: sim.NewWorld(sim.Config{Seed: uint64(len(in)), Window: 1 << 10}), lent: []byte("lent to the hostile")}
	open := func(name string) *user {
		cls, err := na.Open("sim://"+name, na.Config{Plugins: []na.Plugin{f.w.Plugin()}, Envelopes: 8, Eager: 1024, SendQueue: 64, PeerTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		nctx, err := cls.NewContext()
		if err != nil {
			t.Fatal(err)
		}
		return &user{t: t, nctx: nctx}
	}
	f.victim, f.other = open("victim"), open("bystander")
	f.arena = bytes.Repeat([]byte{'#'}, regionSize+64)
	in1, in2, in3 := f.arena[16:17:17], f.arena[33:200:200], f.arena[216:216+regionSize-168:216+regionSize-168]
	f.in = f.register(na.WriteOnly, in1, in2, in3)
	f.out = f.register(na.ReadOnly, bytes.Repeat([]byte{'o'}, regionSize))
	host, err := f.w.Raw("hostile")
	if err != nil {
		t.Fatal(err)
	}
	f.hostile = &hostilePeer{t: t, host: host, in: in, inc: 1, ops: []uint64{0, 1, 2, 1 << 32}, tags: []uint64{0, 1, 2, 3},
		tokens: [][16]byte{{}, f.in.Key().Token, f.out.Key().Token}}
	for range 2 {
		f.receiveAll()
	}
	return f
}

func (f *hostileTest) register(access na.Access, segs ...[]byte) *na.Mem {
	m, err := f.victim.nctx.Class().Register(access, segs...)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

// receiveAll makes the victim answer the bystander, and keep the messages of the hostile until the
// program releases them.
func (f *hostileTest) receiveAll() {
	u := f.victim
	u.start("receive", u.nctx.RecvUnexpected, func(r na.Result) {
		if r.Err != nil {
			return
		}
		f.receiveAll()
		env := r.Envelope
		if env.Tag&bystanders == 0 {
			u.held = append(u.held, env)
			return
		}
		data, tag := bytes.Clone(env.Data), env.Tag
		env.Free()
		u.start("answer", func(op *na.Op) error { return u.nctx.SendExpected(op, r.Addr, tag, data) }, nil)
	})
}

// driveAll drives all nodes, some times.
func (f *hostileTest) driveAll(times int) {
	for range times {
		for _, u := range []*user{f.victim, f.other} {
			_ = u.nctx.Progress(0)
			for u.nctx.Trigger(0) > 0 {
			}
		}
		f.w.Sleep(roundTrip)
		f.hostile.readFrames()
	}
}

// roundTrip is longer than the time of anything in flight.
const roundTrip = 50 * time.Microsecond

// checkBystander has the bystander call the victim, put and get, and fails when that does not work.
func (f *hostileTest) checkBystander() {
	u, peer := f.other, f.victim.nctx.Self()
	f.calls++
	tag, text := bystanders|na.Tag(f.calls), fmt.Sprint("call ", f.calls)
	answer, data := make([]byte, 64), make([]byte, 100)
	local, err := u.nctx.Class().NewMem(data)
	if err != nil {
		f.t.Fatal(err)
	}
	own := f.register(na.ReadWrite, bytes.Repeat([]byte{byte(f.calls)}, 100))
	key := own.Key()
	works := []*operation{
		u.start("answer", func(op *na.Op) error { return u.nctx.RecvExpected(op, peer, tag, answer) }, nil),
		u.start("call", func(op *na.Op) error { return u.nctx.SendUnexpected(op, peer, tag, []byte(text)) }, nil),
		u.start("get", func(op *na.Op) error { return u.nctx.Get(op, local, 0, peer, key, 0, 100) }, nil),
		u.start("put", func(op *na.Op) error { return u.nctx.Put(op, local, 50, peer, key, 50, 50) }, nil),
	}
	for range 200 {
		f.driveAll(1)
		if works[0].ended+works[1].ended+works[2].ended+works[3].ended == 4 {
			break
		}
	}
	for _, w := range works {
		if w.ended != 1 || w.r.Err != nil {
			f.t.Fatalf("the bystander's %s %d: ended %d times, %v", w.what, f.calls, w.ended, w.r.Err)
		}
	}
	if got := string(answer[:works[0].r.N]); got != text || data[0] != byte(f.calls) {
		f.t.Fatalf("the bystander got %q and %d, want %q and %d", got, data[0], text, byte(f.calls))
	}
	f.victim.start("deregister", func(op *na.Op) error { return f.victim.nctx.Deregister(op, own) }, nil)
}

// actAsVictim makes the victim's program start an operation with the hostile.
func (f *hostileTest) actAsVictim(what byte) {
	u, v := f.victim, f.hostile.in.next
	peer := na.MakeAddr(hostileName, 0)
	if len(u.held) > 0 {
		peer = u.held[len(u.held)-1].From
	}
	key := na.Key{Token: [16]byte{v()}, Len: 1 << 20, Access: na.ReadWrite}
	switch what % 12 {
	case 0:
		u.start("send", func(op *na.Op) error {
			return u.nctx.SendUnexpectedBy(op, peer, na.Tag(v()), make([]byte, 64), na.Deadline{At: u.nctx.Now() + time.Duration(v())*time.Millisecond})
		}, func(r na.Result) {
			if r.Err == nil {
				f.sent = append(f.sent, r)
			}
		})
	case 1:
		u.start("send expected", func(op *na.Op) error { return u.nctx.SendExpected(op, peer, na.Tag(v()%8), make([]byte, int(v()))) }, nil)
	case 2:
		buf, ended := u.into(int(v()))
		u.start("receive expected", func(op *na.Op) error { return u.nctx.RecvExpected(op, peer, na.Tag(v()%8), buf) }, ended)
	case 3, 4:
		n := int64(v()) * 4
		buf, ended := u.into(int(n))
		m, err := u.nctx.Class().NewMem(buf[:n/3], buf[n/3:])
		if err != nil {
			f.t.Fatal(err)
		}
		if what%12 == 3 {
			u.start("get", func(op *na.Op) error { return u.nctx.Get(op, m, 0, peer, key, 0, n) }, ended)
		} else {
			u.start("put", func(op *na.Op) error { return u.nctx.Put(op, m, 0, peer, key, 0, n) }, nil)
		}
	case 5:
		u.start("lease", func(op *na.Op) error {
			m, err := u.nctx.Upper().Lease(op, peer, na.Tag(v()%8), f.lent)
			if m != nil && err == nil {
				f.hostile.tokens = append(f.hostile.tokens, m.Key().Token)
			}
			return err
		}, nil)
	case 6:
		if len(f.sent) > 0 {
			r := pickOne(&f.hostile.in, f.sent)
			if v()%4 == 0 {
				u.nctx.Upper().Abandon(r.Addr, r.ID)
				return
			}
			u.start("withdraw", func(op *na.Op) error { return u.nctx.Withdraw(op, r.Addr, r.ID) }, nil)
		}
	case 7, 8:
		if w := pickOne(&f.hostile.in, u.works); w != nil && w.what != "receive" && w.what != "answer" {
			w.op.Cancel()
		}
	case 9:
		if n := len(u.held); n > 0 {
			i := int(v()) % n
			if env := u.held[i]; v()%2 == 0 {
				env.Accept()
			} else {
				env.Free()
				u.held = append(u.held[:i], u.held[i+1:]...)
			}
		}
	case 10:
		if v()%4 == 0 {
			u.nctx.Disconnect(peer, na.ErrTimeout)
		}
	case 11: // the peer's memory is taken back, and replaced
		m := f.out
		f.out = f.register(na.ReadOnly, bytes.Repeat([]byte{'o'}, regionSize))
		f.hostile.tokens = append(f.hostile.tokens, f.out.Key().Token)
		u.start("deregister", func(op *na.Op) error { return u.nctx.Deregister(op, m) }, nil)
	}
}

// run plays the program.
func (f *hostileTest) run() {
	h := f.hostile
	f.checkBystander()
	for steps := 0; len(h.in) > 0 && steps < 200; steps++ {
		switch b := h.in.next(); {
		case b < 128:
			h.sendNext(b)
		case b < 224:
			f.actAsVictim(b)
		case b < 232:
			f.checkBystander()
		case b < 236:
			f.w.Sleep(time.Duration(h.in.next()) * 4 * time.Millisecond)
		case b < 240:
			continue // together with the next bytes
		}
		f.driveAll(1 + steps%2)
		f.checkGauges()
	}
	f.checkBystander()
	f.audit()
	f.close()
}

// checkGauges checks the gauges that the hostile peer could have made grow.
func (f *hostileTest) checkGauges() {
	st := f.victim.nctx.Stats()
	if st.Envelopes > 8*(st.Peers+int(st.PeersLost)+1) || st.Reserved > 64<<20 || st.Leases > 1024 {
		f.t.Fatalf("beyond the limits: %+v", st)
	}
}

// audit checks that a session which was not broken is as good as ever.
func (f *hostileTest) audit() {
	h := f.hostile
	h.mute = false
	f.driveAll(3)
	if h.conn == nil || !h.greets || h.over || h.gone || h.torn {
		return
	}
	if h.rest != nil {
		h.sendBytes(nil)
	}
	before := h.pongs
	h.sendHonestFrame(frame.Header{Kind: frame.Ping, Tag: 1}, 0)
	f.driveAll(5)
	if !h.over && h.pongs == before {
		f.t.Fatalf("the session is neither ended nor in use")
	}
}

// close ends everything, and checks that all has ended once.
func (f *hostileTest) close() {
	if n := f.other.nctx.Stats().PeersLost; n != 0 {
		f.t.Fatalf("the bystander has lost %d sessions", n)
	}
	for _, env := range f.victim.held {
		env.Free()
	}
	for _, u := range []*user{f.victim, f.other} {
		_ = u.nctx.Class().Close()
	}
	for i := 0; !f.victim.nctx.Closed() || !f.other.nctx.Closed(); i++ {
		f.driveAll(1)
		if i > 1000 {
			f.t.Fatalf("the class does not close: %d operations are left", f.victim.nctx.Live())
		}
	}
	for _, u := range []*user{f.victim, f.other} {
		if u.posted != u.ended {
			f.t.Fatalf("%d operations were started and %d have ended", u.posted, u.ended)
		}
		for _, w := range u.works {
			if w.what == "" && w.ended != 0 || w.what != "" && w.ended != 1 {
				f.t.Fatalf("%q has ended %d times", w.what, w.ended)
			}
		}
		for _, check := range u.late {
			check()
		}
		if st := u.nctx.Stats(); st.Envelopes != 0 || st.Reserved != 0 || st.Leases != 0 || st.Outstanding != 0 {
			f.t.Fatalf("left behind: %+v", st)
		}
	}
	for i, b := range f.arena {
		in := i == 16 || i >= 33 && i < 200 || i >= 216 && i < 216+regionSize-168
		if !in && b != '#' {
			f.t.Fatalf("byte %d beside the region was written", i)
		}
	}
	if !bytes.Equal(f.out.Segments()[0], bytes.Repeat([]byte{'o'}, regionSize)) || string(f.lent) != "lent to the hostile" {
		f.t.Fatal("memory that peers may only read was written")
	}
}

// FuzzSession (F77): a program of legal and illegal frames, with operations of the user in between,
// is sent to a live endpoint. Nothing panics, every operation ends once, no other memory is
// accessed, and an honest peer of the same endpoint is served all the time.
func FuzzSession(f *testing.F) {
	for _, p := range hostilePrograms {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > 4096 {
			return
		}
		newHostileTest(t, p).run()
	})
}

// hostilePrograms are the seeds: each goes one way far.
var hostilePrograms = [][]byte{
	{0, 4, 1, 10, 4, 2, 20, 137, 0, 0, 137, 0, 1, 224},                                    // messages that are accepted
	{0, 130, 9, 50, 0, 128, 1, 2, 3, 5, 0, 0, 30, 5, 0, 1, 3, 224, 16, 3, 3},              // answers, goodbye
	{0, 131, 1, 40, 6, 0, 10, 50, 7, 0, 131, 1, 40, 135, 0, 7, 0, 8, 0, 7},                // gets of the user
	{0, 132, 1, 40, 9, 0, 0, 0, 132, 1, 40, 135, 0, 9, 0, 0, 0},                           // puts of the user
	{0, 10, 1, 0, 0, 100, 11, 2, 1, 5, 100, 9, 11, 3, 1, 0, 33, 200, 10, 1, 0, 64, 64},    // puts and gets of the peer
	{0, 133, 1, 3, 10, 1, 0, 0, 10, 139, 1, 10, 2, 0, 0, 9, 135, 1, 1},                    // leases, memory taken back
	{0, 128, 1, 2, 3, 134, 1, 0, 1, 2, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 1, 12, 1, 0}, // withdraws
	{1, 1, 9, 18, 1, 1, 2, 0, 0, 18, 1, 1, 7, 1, 18, 0, 1, 0xd7, 3, 3, 18, 0, 1, 0xe0, 9}, // HELLOs
	{0, 4, 1, 1, 18, 1, 0, 4, 1, 1, 18, 0, 0, 4, 1, 1, 17, 18, 0, 0},                      // restarts
	{128, 1, 2, 3, 18, 0, 0, 0, 4, 2, 2, 5, 0, 0, 0, 224},                                 // dialled by the victim
	{0, 15, 9, 1, 4, 1, 1, 15, 3, 0, 4, 1, 1, 224},                                        // cut frames
	{0, 19, 128, 1, 2, 3, 13, 1, 1, 13, 1, 1, 13, 1, 1, 232, 255, 232, 255, 232, 255, 224},
	{0, 4, 1, 1, 4, 1, 1, 4, 1, 1, 4, 1, 1, 4, 1, 1, 4, 1, 1, 4, 1, 1, 4, 1, 1, 4, 1, 1, 224}, // one message too many
	{0, 4, 1, 1, 14, 1, 7, 224, 18, 0, 0, 13, 1, 0, 2, 11, 0, 0, 0, 0, 0, 0, 0, 1, 0x90, 0, 0},
}

// TestHostilePrograms plays random programs, so that the plain tests see more than the seeds.
func TestHostilePrograms(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 77))
			p := make([]byte, 20+r.IntN(600))
			for i := range p {
				p[i] = byte(r.UintN(256))
			}
			newHostileTest(t, p).run()
		})
	}
}
