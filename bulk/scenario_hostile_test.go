package bulk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A hostilePeer is a peer that keeps the rules of package na and none of those above: a program of bytes selects which
// requests, answers, keys and bulk handles to make up, which of the real ones to alter, what to do with memory that
// is not its own, and when to leave. (FuzzSession is about peers that break the rules of package na.)
//
//	program ─► peer: na ═══ sim ═══ na, hg, bulk: victim ◄─ what its user does ─ program
//	                                 └═══ sim ═══ bystander: is served all the time
type hostilePeer struct {
	t     testing.TB
	world *sim.World
	in    program
	nctx  *na.Context
	recv  *na.Op
	born  int

	asked  []*na.Envelope // requests of the victim that have not been freed
	called []na.Tag       // the identities of its calls that have arrived
	sent   []na.Result
	mem    *na.Mem
	keys   []na.Key // those that have arrived, and its own
	ops    []*na.Op
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

// alter returns v, or at times another number.
func (p *program) alter(v uint64) uint64 {
	switch b := p.next(); b {
	case 255, 254, 253:
		return v + uint64(b-252)
	case 252, 251:
		return v - uint64(b-250)
	case 250, 249:
		return v ^ 1<<(p.next()%64)
	case 248:
		return 0
	}
	return v
}

// pickOne returns one of some values; the last are the most likely.
func pickOne[T any](p *program, of []T) (v T) {
	if len(of) == 0 {
		return v
	}
	return of[len(of)-1-int(p.next())%len(of)]
}

var lies = []string{"echo", "keep", "big", "move", "one-way", "nobody knows it"}

const victimName = "sim://victim"

// connect gives the hostile peer a new life.
func (l *hostilePeer) connect() {
	l.born++
	cls, err := na.Open("sim://hostile", na.Config{
		Plugins: []na.Plugin{l.node().Plugin()}, PeerTimeout: time.Second, Eager: 1024 >> (l.born % 2 * 2),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if l.nctx, err = cls.NewContext(); err != nil {
		l.t.Fatal(err)
	}
	if l.mem, err = cls.Register(na.ReadWrite, bytes.Repeat([]byte{'l'}, 5000), bytes.Repeat([]byte{'m'}, 3000)); err != nil {
		l.t.Fatal(err)
	}
	l.keys = append(l.keys, l.mem.Key())
	l.asked, l.sent, l.ops = nil, nil, nil
	l.recv = l.nctx.NewOp(l.receiveRequest)
	if err := l.nctx.RecvUnexpected(l.recv); err != nil {
		l.t.Fatal(err)
	}
}

func (l *hostilePeer) node() *sim.Node { return l.world.Node(fmt.Sprint("hostile", l.born)) }

func (l *hostilePeer) close() {
	l.node().Resume()
	for _, env := range l.asked {
		env.Free()
	}
	l.asked = nil
	_ = l.nctx.Class().Close()
	for i := 0; !l.nctx.Closed(); i++ {
		l.drive()
		if i > 1000 {
			l.t.Fatalf("the hostile peer does not close: %+v", l.nctx.Upper().Underway())
		}
	}
}

func (l *hostilePeer) drive() {
	_ = l.nctx.Progress(0)
	for l.nctx.Trigger(0) > 0 {
	}
}

// receiveRequest takes a request in, with the keys that are in it.
func (l *hostilePeer) receiveRequest(_ *na.Op, r na.Result) {
	if r.Err != nil {
		return
	}
	l.asked = append(l.asked, r.Envelope)
	l.called = append(l.called, r.Envelope.Tag)
	const header = 24 // of a request
	for _, at := range []int{header, header + 3} {
		if data := r.Envelope.Data; len(data) >= at+na.KeySize {
			if key, err := na.DecodeKey(data[at : at+na.KeySize]); err == nil {
				l.keys = append(l.keys, key)
			}
		}
	}
	_ = l.nctx.RecvUnexpected(l.recv)
}

// start starts an operation, whose result does not matter.
func (l *hostilePeer) start(start func(op *na.Op) error, ended func(na.Result)) {
	op := l.nctx.NewOp(func(_ *na.Op, r na.Result) {
		if ended != nil && r.Err == nil {
			ended(r)
		}
	})
	if start(op) == nil {
		l.ops = append(l.ops, op)
	}
}

// drawKey returns a key that is real, or nearly.
func (l *hostilePeer) drawKey() na.Key {
	k := pickOne(&l.in, l.keys)
	k.Len = int64(l.in.alter(uint64(k.Len)))
	if l.in.next() > 250 {
		k.Token[l.in.next()%16] ^= l.in.next()
	}
	if l.in.next() > 240 {
		k.Access = na.Access(l.in.next() % 4)
	}
	return k
}

// drawBody is a payload: a bulk handle, a key, or some bytes. more means that the key is to be fetched.
func (l *hostilePeer) drawBody() (b []byte, size uint64, more byte) {
	switch l.in.next() % 4 {
	case 0:
		flags := l.in.next()
		b = []byte{4, flags & l.in.next() & 3, byte(l.in.alter(0))}
		b = l.drawKey().Append(b)
		if b[1]&2 != 0 {
			name := pickOne(&l.in, []string{"sim://hostile", victimName, "sim://bystander"})
			b = append(binary.LittleEndian.AppendUint16(b, uint16(l.in.alter(uint64(len(name))))), name...)
		}
		if b[1]&1 != 0 {
			b = append(b, bytes.Repeat([]byte{'e'}, int(l.in.next()))...)
		}
		return b, uint64(len(b)), 0
	case 1:
		k := l.drawKey()
		return k.Append(nil), uint64(k.Len), 1
	}
	b = bytes.Repeat([]byte{'p'}, int(l.in.next()))
	return b, uint64(len(b)), 0
}

// victimAddr is the victim: as it calls itself, or as the peer of a session that it has made.
func (l *hostilePeer) victimAddr() na.Addr {
	if len(l.asked) > 0 && l.in.next()%2 == 0 {
		return pickOne(&l.in, l.asked).From
	}
	return na.MakeAddr(victimName, 0)
}

func (l *hostilePeer) step(what byte) {
	v := l.in.next
	switch what % 14 {
	case 0, 1, 2: // a request
		body, size, more := l.drawBody()
		b := make([]byte, 24, 24+len(body))
		b[0], b[1] = byte(l.in.alter(4)), byte(l.in.alter(uint64(more)))
		binary.LittleEndian.PutUint32(b[4:], uint32(l.in.alter(0)))
		name := lies[int(v())%len(lies)]
		if name == "one-way" {
			b[1] |= 2
		}
		binary.LittleEndian.PutUint64(b[8:], l.in.alter(uint64(hg.HashName(name))))
		binary.LittleEndian.PutUint64(b[16:], l.in.alter(size))
		b = append(b, body...)
		b = b[:min(uint64(len(b)), l.in.alter(uint64(len(b))))]
		to, tag := l.victimAddr(), na.Tag(l.in.alter(uint64(v()%8)))
		l.start(func(op *na.Op) error { return l.nctx.SendUnexpected(op, to, tag, b) }, func(r na.Result) { l.sent = append(l.sent, r) })
	case 3, 4, 5: // an answer
		if len(l.called) == 0 {
			return
		}
		body, size, more := l.drawBody()
		b := make([]byte, 16, 16+len(body))
		b[0], b[1], b[2], b[3] = byte(l.in.alter(4)), byte(l.in.alter(uint64(more))), byte(l.in.alter(0)), byte(l.in.alter(0))
		binary.LittleEndian.PutUint64(b[8:], l.in.alter(size))
		b = append(b, body...)
		to, tag := l.victimAddr(), na.Tag(l.in.alter(uint64(pickOne(&l.in, l.called))))
		l.start(func(op *na.Op) error { return l.nctx.SendExpected(op, to, tag, b) }, nil)
	case 6: // a request is done with, or taken for good
		if n := len(l.asked); n > 0 {
			i := int(v()) % n
			if env := l.asked[i]; v()%2 == 0 {
				env.Accept()
			} else {
				env.Free()
				l.asked = append(l.asked[:i:i], l.asked[i+1:]...)
			}
		}
	case 7: // a request is taken back
		if r := pickOne(&l.in, l.sent); r.ID != 0 {
			if v()%2 == 0 {
				l.nctx.Upper().Abandon(r.Addr, r.ID)
			} else {
				l.start(func(op *na.Op) error { return l.nctx.Withdraw(op, r.Addr, r.ID) }, nil)
			}
		}
	case 8, 9, 10: // memory of the victim, or other memory
		key, to := l.drawKey(), l.victimAddr()
		roff, n := int64(l.in.alter(uint64(v()))), int64(v())*8
		if what%14 == 8 {
			l.start(func(op *na.Op) error { return l.nctx.Put(op, l.mem, 0, to, key, roff, n) }, nil)
		} else {
			l.start(func(op *na.Op) error { return l.nctx.Get(op, l.mem, 0, to, key, roff, n) }, nil)
		}
	case 11:
		l.nctx.Upper().GiveBack(l.victimAddr(), l.drawKey())
	case 12: // its memory is taken away, or an operation
		if v()%2 == 0 {
			mem := l.mem
			l.start(func(op *na.Op) error { return l.nctx.Deregister(op, mem) }, nil)
		} else if op := pickOne(&l.in, l.ops); op != nil {
			op.Cancel()
		}
	case 13:
		switch v() % 16 {
		case 0:
			l.close()
			l.connect()
		case 1:
			l.nctx.Disconnect(l.victimAddr(), na.ErrTimeout)
		case 2, 3, 4, 5:
			l.node().Pause(time.Duration(v()) * 200 * time.Microsecond)
		}
	}
}

// A hostileTest is all of it: the hostile peer, its victim, and the bystander.
type hostileTest struct {
	*hostilePeer
	victim, other *hg.Context
	starts        []*startedOp
	calls         []*hg.Handle // of the victim, to the hostile peer
	kept          []hg.Request // requests that the victim has not answered
	moves         []*bulk.Op
	shared        []*lentMemory
	closed        []*lentMemory
	lent          []byte // bodies of calls that do not fit a message
	buf           *memory
	local         *bulk.Handle
	rounds        int
	ending        bool // requests are kept no more
}

// startedOp is something with a callback.
type startedOp struct {
	what  string
	ended int
}

// A lentMemory is memory that the victim gives the hostile peer.
type lentMemory struct {
	h   *bulk.Handle
	mem *memory
}

func newHostileTest(t testing.TB, p []byte) *hostileTest {
	w := sim.NewWorld(sim.Config{Seed: 1})
	f := &hostileTest{hostilePeer: &hostilePeer{t: t, world: w, in: p, called: []na.Tag{0, 1, 2}}, lent: bytes.Repeat([]byte{'i'}, 3000)}
	f.victim, f.other = f.class(victimName, "victim"), f.class("sim://", "bystander")
	f.buf = newMemory(1000, 7000)
	f.local = f.handle(f.victim, bulk.Options{Access: bulk.LocalOnly}, f.buf.segs...)
	f.hostilePeer.connect()
	return f
}

func (f *hostileTest) class(addr, node string) *hg.Context {
	cls, err := hg.Open(addr, hg.Config{
		Codec: codec.Raw, MaxInput: 16 << 10, MaxOutput: 16 << 10, MaxLent: 64 << 10, MaxPulled: 64 << 10, MaxActivePerPeer: 4,
		NA: na.Config{Plugins: []na.Plugin{f.world.Node(node).Plugin()}, Envelopes: 8, Eager: 1024, PeerTimeout: time.Second},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, name := range lies[:5] {
		if _, err := cls.RegisterRPC(hg.RPC{Name: name, Handler: f.serve, OneWay: name == "one-way"}); err != nil {
			f.t.Fatal(err)
		}
	}
	hctx, err := cls.NewContext()
	if err != nil {
		f.t.Fatal(err)
	}
	return hctx
}

func (f *hostileTest) handle(hctx *hg.Context, opts bulk.Options, segs ...[]byte) *bulk.Handle {
	h, err := bulk.Create(hctx, opts, segs...)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

// recordStart records an operation that has a callback; it is called in it.
func (f *hostileTest) recordStart(what string) (ended func()) {
	s := &startedOp{what: what}
	f.starts = append(f.starts, s)
	return func() { s.ended++ }
}

// dropLastStart takes back the last begun, which an error has refused.
func (f *hostileTest) dropLastStart() { f.starts = f.starts[:len(f.starts)-1] }

// serve is the handler of the victim's RPCs. The bystander gets the answer at once, and the hostile peer's
// requests wait if the RPC is one that waits.
func (f *hostileTest) serve(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	switch h.Name() {
	case "echo":
		f.respond(h, in)
	case "keep":
		if !f.ending {
			_ = h.Detach()
			f.kept = append(f.kept, h)
		}
	case "big":
		f.respond(h, make([]byte, 5000))
	case "move":
		remote := new(bulk.Handle)
		if err := remote.UnmarshalBinary(in); err != nil {
			return err
		}
		dir := bulk.Pull
		if remote.Access() == bulk.WriteOnly {
			dir = bulk.Push
		}
		_ = h.Detach()
		ended := f.recordStart("transfer for a request")
		_, err := bulk.Transfer(f.victim, bulk.Spec{Dir: dir, Peer: h.Peer(), Remote: remote, Local: f.local, Size: min(remote.Len(), 8000)},
			func(_ *bulk.Op, err error) {
				ended()
				if err != nil {
					_ = h.RespondError(err, nil)
				} else {
					f.respond(h, nil)
				}
			})
		if err != nil {
			f.dropLastStart()
			return err
		}
	}
	return nil
}

func (f *hostileTest) respond(h hg.Request, out []byte) {
	ended := f.recordStart("response")
	if h.RespondRaw(out, func(hg.Request, error) { ended() }) != nil {
		f.dropLastStart()
	}
}

// actAsVictim has the victim's program do something.
func (f *hostileTest) actAsVictim(what byte) {
	v := f.in.next
	switch what % 12 {
	case 0, 1, 2: // call the hostile peer
		h, err := f.victim.Create(na.MakeAddr("sim://hostile", 0), hg.HashName(lies[int(v())%5]))
		if err != nil {
			f.t.Fatal(err)
		}
		if v()%4 == 1 {
			h.SetTimeout(time.Duration(v()) * time.Millisecond)
		}
		in := f.lent[:v()]
		switch v() % 4 {
		case 1:
			in = f.lent
		case 2:
			s := &lentMemory{mem: newMemory(100+int(v()), 200, 1)}
			s.mem.fillByte('s')
			access := bulk.Access(1 + v()%3)
			s.h = f.handle(f.victim, bulk.Options{Access: access, Eager: -1}, s.mem.segs...)
			if in, err = s.h.MarshalBinary(); err != nil {
				f.t.Fatal(err)
			}
			f.shared = append(f.shared, s)
		}
		f.forward(h, in)
		f.calls = append(f.calls, h)
	case 3:
		if h := pickOne(&f.in, f.calls); h != nil {
			f.forward(h, f.lent[:v()])
		}
	case 4:
		if h := pickOne(&f.in, f.calls); h != nil {
			h.Cancel()
		}
	case 5:
		if h := pickOne(&f.in, f.calls); h != nil {
			ended := f.recordStart("withdraw")
			if h.Withdraw(time.Duration(v()%4)*10*time.Millisecond, func(*hg.Handle, hg.WithdrawResult) { ended() }) != nil {
				f.dropLastStart()
			}
		}
	case 6:
		if n := len(f.calls); n > 0 {
			i := int(v()) % n
			h := f.calls[i]
			if v()%2 == 0 {
				h.Abandon()
				return
			}
			h.Close()
			f.calls = append(f.calls[:i:i], f.calls[i+1:]...)
		}
	case 7, 8:
		if n := len(f.kept); n > 0 {
			i := int(v()) % n
			h := f.kept[i]
			switch v() % 6 {
			case 0:
				f.respond(h, make([]byte, int(v())*3))
			case 1:
				f.respond(h, make([]byte, 4000))
			case 2:
				_ = h.RespondError(na.WithText(hg.ErrAgain, "try again"), nil)
			case 3:
				h.Cancel()
				return
			case 4:
				_ = h.Context()
				return
			}
			f.kept = append(f.kept[:i:i], f.kept[i+1:]...)
		}
	case 9: // move something to or from the memory that the hostile peer claims to have
		if len(f.kept) == 0 {
			return
		}
		remote := new(bulk.Handle)
		b := f.hostilePeer.drawKey().Append([]byte{1, 0})
		if remote.UnmarshalBinary(b) != nil {
			return
		}
		spec := bulk.Spec{
			Dir: bulk.Dir(v() % 2), Peer: pickOne(&f.in, f.kept).Peer(), Remote: remote, RemoteOffset: int64(v()),
			Local: f.local, LocalOffset: int64(v()) * 4, Size: int64(v()) * 24, Chunk: 4 << 10,
		}
		ended := f.recordStart("transfer")
		op, err := bulk.Transfer(f.victim, spec, func(*bulk.Op, error) { ended() })
		if err != nil {
			f.dropLastStart()
			return
		}
		f.moves = append(f.moves, op)
	case 10:
		if op := pickOne(&f.in, f.moves); op != nil {
			op.Cancel()
		}
	case 11:
		if n := len(f.shared); n > 0 {
			f.closeLent(int(v()) % n)
		}
	}
}

func (f *hostileTest) forward(h *hg.Handle, in []byte) {
	ended := f.recordStart("call")
	if h.ForwardRaw(in, func(h *hg.Handle, err error) {
		ended()
		if err == nil {
			if _, failed := h.OutputRaw(); failed != nil && h.Name() != "one-way" {
				f.t.Fatalf("a call has ended well without an output: %v", failed)
			}
		}
	}) != nil {
		f.dropLastStart()
	}
}

// closeLent closes a handle. Once that has completed the memory is not written any more.
func (f *hostileTest) closeLent(i int) {
	s := f.shared[i]
	f.shared = append(f.shared[:i:i], f.shared[i+1:]...)
	ended := f.recordStart("close")
	if err := s.h.CloseFunc(func(error) {
		ended()
		s.mem.fillByte('x')
		f.closed = append(f.closed, s)
	}); err != nil {
		f.t.Fatal(err)
	}
}

// driveAll drives all contexts a few times.
func (f *hostileTest) driveAll(times int) {
	for range times {
		for _, hctx := range []*hg.Context{f.victim, f.other} {
			_ = hctx.Progress(0)
			for hctx.Trigger(0) > 0 {
			}
		}
		f.hostilePeer.drive()
		f.world.Sleep(100 * time.Microsecond)
	}
}

// checkBystander has the bystander call the victim, and the victim pull from it.
func (f *hostileTest) checkBystander() {
	f.rounds++
	mem := newMemory(1000)
	mem.fill(f.rounds)
	own := f.handle(f.other, bulk.Options{Access: bulk.ReadOnly, Eager: -1}, mem.segs...)
	descr, err := own.MarshalBinary()
	if err != nil {
		f.t.Fatal(err)
	}
	closed := false
	for i, in := range [][]byte{[]byte(fmt.Sprint("round ", f.rounds)), descr} {
		name := []string{"echo", "move"}[i]
		h, err := f.other.Create(na.MakeAddr(victimName, 0), hg.HashName(name))
		if err != nil {
			f.t.Fatal(err)
		}
		calls := 0
		if err := h.ForwardRaw(in, func(_ *hg.Handle, e error) { calls, err = calls+1, e }); err != nil {
			f.t.Fatal(err)
		}
		for i := 0; calls == 0 && i < 1000; i++ {
			f.driveAll(1)
		}
		if calls != 1 || err != nil {
			f.t.Fatalf("the bystander's %s %d: ended %d times, %v", name, f.rounds, calls, err)
		}
		if out, _ := h.OutputRaw(); name == "echo" && !bytes.Equal(out, in) {
			f.t.Fatalf("the bystander got %q, want %q", out, in)
		}
		h.Close()
	}
	if err := own.CloseFunc(func(error) { closed = true }); err != nil {
		f.t.Fatal(err)
	}
	for i := 0; !closed; i++ {
		f.driveAll(1)
		if i > 1000 {
			f.t.Fatal("the bystander's handle does not close")
		}
	}
	if !bytes.Equal(mem.bytes(), pattern(f.rounds, 0, 1000)) {
		f.t.Fatal("the bystander's memory was written")
	}
}

// run plays the program.
func (f *hostileTest) run() {
	f.checkBystander()
	for steps := 0; len(f.in) > 0 && steps < 200; steps++ {
		switch b := f.in.next(); {
		case b < 112:
			f.step(b)
		case b < 224:
			f.actAsVictim(b)
		case b < 232:
			f.checkBystander()
		case b < 240:
			f.world.Sleep(time.Duration(f.in.next()) * 4 * time.Millisecond)
		case b < 244:
			continue // with the next one, in a single write
		}
		f.driveAll(1 + steps%3)
		if st := f.victim.Stats(); st.Lent > 64<<10 || st.Pulled > 64<<10 || st.NA.Envelopes > 8*(st.NA.Peers+int(st.NA.PeersLost)+1) {
			f.t.Fatalf("beyond the limits: %+v", st)
		}
	}
	f.checkBystander()
	f.finish()
}

// finish ends everything, and checks that all has ended once and nothing was touched that may not be.
func (f *hostileTest) finish() {
	f.ending = true
	for _, h := range f.calls {
		h.Cancel()
		h.Close()
	}
	for _, h := range f.kept {
		_ = h.RespondError(na.ErrNoResponse, nil)
	}
	for _, op := range f.moves {
		op.Cancel()
	}
	for len(f.shared) > 0 {
		f.closeLent(0)
	}
	f.driveAll(100)
	f.checkBystander()
	f.hostilePeer.close()
	_ = f.local.Close()
	if n := f.other.Stats().NA.PeersLost; n != 0 {
		f.t.Fatalf("the bystander has lost %d sessions", n)
	}
	for _, hctx := range []*hg.Context{f.other, f.victim} {
		err, left := hctx.Class().Shutdown(context.Background()), (*hg.ShutdownError)(nil)
		if errors.As(err, &left) && hctx == f.victim && left.Unconfirmed > 0 && strings.HasPrefix(err.Error(), fmt.Sprintf("hg: shutdown: %d unconfirmed", left.Unconfirmed)) {
			err = nil // one-way calls to the hostile peer
		}
		if err != nil {
			f.t.Fatalf("shutdown: %v; %+v", err, hctx.Stats())
		}
		if st := hctx.Stats(); st.Handles != 0 || st.Lent != 0 || st.Pulled != 0 || st.Active != 0 || st.Waiting != 0 ||
			st.NA.Envelopes != 0 || st.NA.Leases != 0 || st.NA.Outstanding != 0 || st.NA.Regions != 0 {
			f.t.Fatalf("left behind: %+v", st)
		}
	}
	for _, s := range f.starts {
		if s.ended != 1 {
			f.t.Fatalf("a %s has ended %d times", s.what, s.ended)
		}
	}
	for _, s := range f.closed {
		if !s.mem.isFilledWith('x') || !s.mem.hasIntactCanaries() {
			f.t.Fatal("memory was written after its handle was closed, or beside it")
		}
	}
	if !f.buf.hasIntactCanaries() || bytes.Count(f.lent, []byte{'i'}) != len(f.lent) {
		f.t.Fatal("memory was written that was not for writing")
	}
}

// FuzzCalls checks that with any behavior of a peer above package na nothing panics, every
// callback runs once, memory is the owner's again when its handle is closed, nothing stays behind,
// and others are served all the time.
func FuzzCalls(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(randomProgram(seed))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > 4096 {
			return
		}
		newHostileTest(t, p).run()
	})
}

// randomProgram returns a random program.
func randomProgram(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 78))
	p := make([]byte, 20+r.IntN(1000))
	for i := range p {
		p[i] = byte(r.UintN(256))
		if r.UintN(3) == 0 {
			p[i] %= 16
		}
	}
	return p
}

// TestHostilePeer plays random programs, so that the plain tests see more than the seeds.
func TestHostilePeer(t *testing.T) {
	seeds := uint64(300)
	if raceflag.Enabled && !long.On { // one goroutine at a time
		seeds = 60
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newHostileTest(t, randomProgram(seed)).run() })
	}
}
