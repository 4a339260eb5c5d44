package natest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// Byte values that detect invalid accesses. guard surrounds receive buffers, spent fills buffers
// after they have been returned to the rule, and secret fills memory that a peer must not reach. A
// pattern contains none of them.
const (
	guard  = 0xa5
	spent  = 0xdd
	secret = 0xee
)

// A call is one entry of the ledger: an operation, how often it was started, and how often its
// callback ran.
type call struct {
	b    *bed
	s    *side
	what string
	op   *na.Op
	then func(r na.Result) // called at the end of the callback; may start the operation again

	buf  []byte // buffer of a receive, within the last element of rooms
	most int    // number of bytes that the receive accepts beyond buf
	sent []byte // the suite's copy of sent data

	mu       sync.Mutex // guards the fields below
	accepted int
	ran      int
	last     na.Result
	env      *na.Envelope     // received and not yet freed
	rooms    []*guardedBuffer // buffers of all receives that were started
}

// A guardedBuffer is a receive buffer between guards, with a snapshot taken when the callback ran.
type guardedBuffer struct {
	arena, snapshot []byte
	n               int
}

// call adds an entry to the ledger.
func (s *side) call(what string) *call {
	c := &call{b: s.b, s: s, what: what}
	c.op = s.NewOp(c.done)
	s.b.mu.Lock()
	s.b.calls = append(s.b.calls, c)
	s.b.mu.Unlock()
	return c
}

func (c *call) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%s of %s, started %d times, ended %d times, last with %v", c.what, c.s.name, c.accepted, c.ran, c.last.Err)
}

// try calls start to start the operation. If it is refused, try returns the error.
func (c *call) try(start func(op *na.Op) error) error {
	c.mu.Lock()
	c.accepted++
	c.mu.Unlock()
	err := start(c.op)
	if err == nil {
		return nil
	}
	c.mu.Lock()
	c.accepted--
	c.mu.Unlock()
	var oe *na.OpError
	if !errors.As(err, &oe) || oe.Op == "" || oe.Fate != na.NotRun {
		c.b.Errorf("%s was refused with %#v, want an OpError that names it and has the fate NotRun", c.what, err)
	}
	return err
}

// start starts the operation, which must be accepted.
func (c *call) start(start func(op *na.Op) error) *call {
	c.b.Helper()
	require.NoError(c.b, c.try(start), "start of %s at %s", c.what, c.s.name)
	return c
}

// requireRefused tries to start an operation that must be refused with code.
func (c *call) requireRefused(code na.Code, start func(op *na.Op) error) {
	c.b.Helper()
	require.ErrorIs(c.b, c.try(start), code, "start of %s", c.what)
}

// done is the callback of the operation.
func (c *call) done(op *na.Op, r na.Result) {
	b := c.b
	if b.triggering.Load() == 0 {
		b.Errorf("%s: its callback ran outside of Trigger", c.what)
	}
	if op != c.op {
		b.Errorf("%s: its callback was given another operation", c.what)
	}
	c.mu.Lock()
	c.ran++
	if c.ran > c.accepted {
		b.Errorf("%s: its callback ran %d times after %d starts", c.what, c.ran, c.accepted)
	}
	c.last = r
	if r.Envelope != nil {
		c.env = r.Envelope
	}
	if n := len(c.rooms); n > 0 {
		c.rooms[n-1].snapshot = bytes.Clone(c.rooms[n-1].arena)
	}
	c.mu.Unlock()
	c.checkResult(r)
	for i := range c.sent {
		c.sent[i] = spent
	}
	if c.then != nil {
		c.then(r)
	}
}

// checkResult checks the invariants that hold for every result.
func (c *call) checkResult(r na.Result) {
	b := c.b
	var oe *na.OpError
	switch {
	case r.Err == nil:
	case !errors.As(r.Err, &oe) || oe.Op == "":
		b.Errorf("%s ended with %#v, want an OpError that names it", c.what, r.Err)
	case na.CodeOf(r.Err) == na.OK || na.CodeOf(r.Err) == na.ErrIO:
		b.Errorf("%s ended with %v, which carries no code", c.what, r.Err)
	}
	if r.Err != nil && r.Envelope != nil {
		b.Errorf("%s ended with %v and an envelope", c.what, r.Err)
	}
	if r.Err == nil && c.buf != nil && r.N > int64(max(len(c.buf), c.most)) {
		b.Errorf("%s received %d bytes into %d", c.what, r.N, len(c.buf))
	}
	if r.Err == nil && c.sent != nil && r.N != int64(len(c.sent)) {
		b.Errorf("%s: got N %d, want %d", c.what, r.N, len(c.sent))
	}
}

// audit checks, at the end of a rule, that the callback ran once for each accepted start and that
// the receive buffers were not written to after the callback.
func (c *call) audit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ran != c.accepted {
		c.b.Errorf("%s: started %d times, its callback ran %d times", c.what, c.accepted, c.ran)
	}
	if c.op.Busy() {
		c.b.Errorf("%s: its operation is still in use after its completion", c.what)
	}
	for _, r := range c.rooms {
		if r.snapshot != nil && !bytes.Equal(r.arena, r.snapshot) {
			c.b.Errorf("%s: its buffer was written after its callback", c.what)
		}
		head, tail := r.arena[:guardSize], r.arena[guardSize+r.n:]
		if !bytes.Equal(head, fill(guardSize, guard)) || !bytes.Equal(tail, fill(guardSize, guard)) {
			c.b.Errorf("%s: bytes beside its buffer were written", c.what)
		}
	}
}

func (c *call) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ran >= c.accepted
}

// times returns the number of times that the callback has run.
func (c *call) times() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ran
}

func (c *call) result() na.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// wait drives the contexts until the operation completes, and returns its result.
func (c *call) wait() na.Result {
	c.b.Helper()
	c.b.until(c.what+" of "+c.s.name+" ends", c.ended)
	return c.result()
}

// requireOK waits for the operation to succeed.
func (c *call) requireOK() na.Result {
	c.b.Helper()
	r := c.wait()
	require.NoError(c.b, r.Err, "%s of %s", c.what, c.s.name)
	return r
}

// requireFails waits for the operation to fail with one of codes.
func (c *call) requireFails(codes ...na.Code) na.Result {
	c.b.Helper()
	r := c.wait()
	for _, code := range codes {
		if errors.Is(r.Err, code) {
			return r
		}
	}
	c.b.Fatalf("%s of %s: got %v, want one of %v", c.what, c.s.name, r.Err, codes)
	return r
}

// requireNotRun waits for the operation to fail with one of codes and with the fate NotRun.
func (c *call) requireNotRun(codes ...na.Code) na.Result {
	c.b.Helper()
	r := c.requireFails(codes...)
	require.Equal(c.b, na.NotRun, r.Fate, "%s of %s: fate of %v", c.what, c.s.name, r.Err)
	return r
}

// cancelNow cancels the operation and calls Trigger but not Progress. Trigger must run the
// callback. cancelNow returns the result of the operation.
func (c *call) cancelNow() na.Result {
	c.b.Helper()
	c.op.Cancel()
	c.s.trigger()
	if !c.ended() && c.b.net.Concurrent {
		// Another goroutine of the plugin may be using the memory at this moment, for one copy or one
		// system call.
		wall := newStopwatch()
		for !c.ended() && !wall.over() {
			c.s.trigger()
		}
	}
	require.True(c.b, c.ended(), "%s of %s: canceled, Trigger called, and its callback did not run", c.what, c.s.name)
	return c.result()
}

// freeEnvelope frees the envelope received by the call.
func (c *call) freeEnvelope() {
	c.mu.Lock()
	env := c.env
	c.env = nil
	c.mu.Unlock()
	if env != nil {
		env.Free()
	}
}

// keepEnvelope removes the received envelope from the ledger and returns it. The rule must free it.
func (c *call) keepEnvelope() *na.Envelope {
	c.mu.Lock()
	defer c.mu.Unlock()
	env := c.env
	c.env = nil
	return env
}

const guardSize = 16

// buffer allocates n bytes between guards for the next start of a receive.
func (c *call) buffer(n int) {
	r := &guardedBuffer{arena: fill(n+2*guardSize, guard), n: n}
	c.buf = r.arena[guardSize : guardSize+n : guardSize+n]
	c.mu.Lock()
	c.rooms = append(c.rooms, r)
	c.mu.Unlock()
}

func fill(n int, v byte) []byte { return bytes.Repeat([]byte{v}, n) }

// period is the number of bytes after which a pattern repeats. It is a prime number, so that all
// pieces of bulk data differ.
const period = 8191

// pattern returns n bytes that depend on seed and on their offset. None of them is guard, spent, or
// secret.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range min(n, period) {
		x := uint32(i)*2654435761 + uint32(seed)*40503
		b[i] = byte(x>>16) & 0x7f
	}
	for i := period; i < n; i *= 2 {
		copy(b[i:], b[:i])
	}
	return b
}

// Each of the following starts an operation, which must be accepted.

func (s *side) lookup(text string) *call {
	s.b.Helper()
	return s.call("lookup").start(func(op *na.Op) error { return s.Lookup(op, text) })
}

func (s *side) send(to na.Addr, tag na.Tag, data []byte) *call {
	s.b.Helper()
	c := s.call("send unexpected")
	c.sent = append([]byte{}, data...)
	return c.start(func(op *na.Op) error { return s.SendUnexpected(op, to, tag, c.sent) })
}

func (s *side) sendExpected(to na.Addr, tag na.Tag, data []byte) *call {
	s.b.Helper()
	c := s.call("send expected")
	c.sent = append([]byte{}, data...)
	return c.start(func(op *na.Op) error { return s.SendExpected(op, to, tag, c.sent) })
}

func (s *side) recv() *call {
	s.b.Helper()
	return s.call("receive unexpected").start(func(op *na.Op) error { return s.RecvUnexpected(op) })
}

func (s *side) recvExpected(from na.Addr, tag na.Tag, n int) *call {
	s.b.Helper()
	c := s.call(fmt.Sprintf("receive expected %d", tag))
	c.buffer(n)
	return c.start(func(op *na.Op) error { return s.RecvExpected(op, from, tag, c.buf) })
}

func (s *side) put(local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) *call {
	s.b.Helper()
	return s.call("put").start(func(op *na.Op) error { return s.Put(op, local, loff, to, key, roff, n) })
}

func (s *side) get(local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) *call {
	s.b.Helper()
	return s.call("get").start(func(op *na.Op) error { return s.Get(op, local, loff, to, key, roff, n) })
}

func (s *side) lease(to na.Addr, tag na.Tag, buf []byte) (*call, *na.Mem) {
	s.b.Helper()
	c := s.call("lease")
	var m *na.Mem
	c.start(func(op *na.Op) (err error) {
		m, err = s.Upper().Lease(op, to, tag, buf)
		return err
	})
	return c, m
}

func (s *side) deregister(m *na.Mem) *call {
	s.b.Helper()
	s.b.mu.Lock()
	for _, r := range s.b.mems {
		if r.m == m {
			r.gone = true
		}
	}
	s.b.mu.Unlock()
	return s.call("deregister").start(func(op *na.Op) error { return s.Deregister(op, m) })
}

// takeBack deregisters m. If the context is closing, it may refuse with ErrClosed, because it has
// already deregistered m.
func (s *side) takeBack(m *na.Mem) {
	s.b.Helper()
	c := s.call("deregister")
	switch err := c.try(func(op *na.Op) error { return s.Deregister(op, m) }); {
	case err == nil:
		c.requireOK()
	case !s.Closing():
		require.NoError(s.b, err, "start of deregister at %s", s.name)
	default:
		require.ErrorIs(s.b, err, na.ErrClosed, "start of deregister at %s", s.name)
	}
}

// register registers memory, which settle deregisters if the rule does not.
func (s *side) register(access na.Access, segs ...[]byte) *na.Mem {
	s.b.Helper()
	m, err := s.cls.Register(access, segs...)
	require.NoError(s.b, err, "register")
	s.b.mu.Lock()
	s.b.mems = append(s.b.mems, &region{s: s, m: m})
	s.b.mu.Unlock()
	return m
}

// A moveKeys holds the keys to two regions of memory: out, which peers may read, and in, to which
// they may write.
type moveKeys struct{ out, in na.Key }

func (s *side) mine(n int) moveKeys {
	return moveKeys{s.register(na.ReadOnly, pattern(0, n)).Key(), s.register(na.WriteOnly, make([]byte, n)).Key()}
}

func (s *side) private(segs ...[]byte) *na.Mem {
	s.b.Helper()
	m, err := s.cls.NewMem(segs...)
	require.NoError(s.b, err, "new memory")
	return m
}

// A message is an unexpected message copied out of its envelope.
type message struct {
	data []byte
	from na.Addr
	tag  na.Tag
}

// next receives the next unexpected message and frees its envelope.
func (s *side) next() message {
	s.b.Helper()
	return s.recv().message()
}

// message waits for a receive to return a message and frees its envelope.
func (c *call) message() message {
	c.b.Helper()
	r := c.requireOK()
	require.NotNil(c.b, r.Envelope, "receive ended with success and no envelope")
	m := message{append([]byte{}, r.Envelope.Data...), r.Envelope.From, r.Envelope.Tag}
	require.Equal(c.b, m.from, r.Addr, "the sender in result and envelope")
	require.Equal(c.b, m.tag, r.Tag, "the tag in result and envelope")
	require.Equal(c.b, int64(len(m.data)), r.N, "the length in result and envelope")
	c.freeEnvelope()
	return m
}

// connect establishes a session by exchanging messages. It returns toA, the address by which t can
// answer a, and toT, the address by which a can answer t.
func (b *bed) connect(a, t *side) (toA, toT na.Addr) {
	b.Helper()
	in := t.recv()
	a.send(t.Self(), 1, []byte("hello")).requireOK()
	toA = in.message().from
	back := a.recvExpected(t.Self(), 2, 8)
	t.sendExpected(toA, 2, []byte("hello"))
	toT = back.requireOK().Addr
	return toA, toT
}
