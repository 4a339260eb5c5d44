package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// TestBulkFilter checks that packets of bulk data arrive at the second socket and all other datagrams
// at the first, over IPv4 and IPv6; and that no other socket can be bound to the address.
func TestBulkFilter(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		opened, err := openPolled(netip.MustParseAddrPort(at), &sharedSocket{})
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
			t.Logf("no IPv6: %v", err)
			continue
		}
		require.NoError(t, err)
		s := opened.(*pollSocket)
		t.Cleanup(s.close)
		s.bulk.open()
		require.GreaterOrEqual(t, s.bulk.fd, 0, "the system has no filter for %s", at)
		_, err = openPolled(s.bound, &sharedSocket{})
		require.ErrorIs(t, err, unix.EADDRINUSE)

		targets := []netip.Addr{s.bound.Addr()}
		switch at {
		case "0.0.0.0:0":
			targets[0] = netip.MustParseAddr("127.0.0.1")
		case "[::]:0":
			targets = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
		}
		from, err := openPolled(netip.AddrPort{}, &sharedSocket{})
		require.NoError(t, err)
		t.Cleanup(from.close)
		for _, to := range targets {
			var want [2][][]byte
			var o outbox
			add := func(bulk int, b ...byte) {
				o.list = append(o.list, outboundDatagram{b: b, to: netip.AddrPortFrom(to, s.bound.Port())})
				want[bulk] = append(want[bulk], b)
			}
			add(0, 1)
			add(0, fragmentByte, arq.BulkFlag)
			for kind := range byte(16) {
				for _, flags := range []byte{0, 1, 2, 129, 254, 255} {
					b := bytes.Repeat([]byte{0xff}, 68)
					b[0], b[1] = kind|1<<4, flags
					bulk := 0
					if p, err := arq.ParseProven(b); kind == arq.DataKind && flags&arq.BulkFlag != 0 {
						require.True(t, err != nil || p.Bulk())
						bulk = 1
					} else if err == nil {
						require.False(t, p.Bulk())
					}
					add(bulk, b...)
				}
			}
			for i := range o.list { // one message each, as a train has one destination
				one := outbox{list: o.list[i : i+1]}
				from.send(&one)
				require.Empty(t, one.unsent)
			}
			for i, fd := range []int{s.fd, s.bulk.fd} {
				var got [][]byte
				r := getReader()
				for n := 1; n > 0; {
					n = s.read(r, fd, batch)
					for _, a := range r.in {
						got = append(got, bytes.Clone(a.b))
					}
				}
				r.put()
				require.Equal(t, want[i], got, "socket %d of %s", i, at)
			}
		}
	}
}

// A contextPair is two contexts that only the goroutine of a test drives. Each socket is wrapped.
type contextPair struct {
	cls  [2]*na.Class
	ctx  [2]*na.Context
	dom  [2]*domain
	sock [2]*watchedSocket
}

// A watchedSocket is a pollSocket whose hasInput and send a test replaces.
type watchedSocket struct {
	*pollSocket
	input bool
	sends [][]arq.Packet // packets of each call to send
}

func (w *watchedSocket) hasInput() bool { return w.input || w.pollSocket.hasInput() }

func (w *watchedSocket) send(o *outbox) {
	var sent []arq.Packet
	for _, d := range o.list {
		if p, err := arq.ParseProven(bytes.Clone(d.b)); err == nil {
			sent = append(sent, p)
		}
	}
	w.sends = append(w.sends, sent)
	w.pollSocket.send(o)
}

// bulkPackets returns the number of packets of bulk data that were sent.
func (w *watchedSocket) bulkPackets() (n int) {
	for _, s := range w.sends {
		for i := range s {
			if s[i].Bulk() {
				n++
			}
		}
	}
	return n
}

func openPair(t *testing.T) *contextPair {
	t.Helper()
	p := &contextPair{}
	for i, addr := range []string{"udp://127.0.0.1:0", "udp://"} {
		cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{plugin{opts: Options{Unassisted: true}, tune: func(d *domain) {
			p.dom[i] = d
			d.open = func(at netip.AddrPort, s *sharedSocket) (socket, error) {
				inner, err := openPolled(at, s)
				if err != nil {
					return nil, err
				}
				p.sock[i] = &watchedSocket{pollSocket: inner.(*pollSocket)}
				return p.sock[i], nil
			}
		}}}})
		require.NoError(t, err)
		p.cls[i] = cls
		p.ctx[i], err = cls.NewContext()
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for i := range p.ctx {
			p.ctx[i].Close()
		}
		p.drive(t, "a context does not close", func() bool { return p.ctx[0].Closed() && p.ctx[1].Closed() }, 0, 1)
		for i := range p.cls {
			require.NoError(t, p.cls[i].Close())
		}
	})
	return p
}

// drive drives the contexts with the given numbers until done reports true.
func (p *contextPair) drive(t *testing.T, what string, done func() bool, which ...int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); {
		require.Less(t, time.Now(), end, what)
		for _, i := range which {
			_ = p.ctx[i].Progress(0)
			p.ctx[i].Trigger(0)
		}
	}
}

// message sends a message from context 1 to context 0. got is set when it has arrived.
func (p *contextPair) message(t *testing.T) (got *bool) {
	t.Helper()
	got = new(bool)
	require.NoError(t, p.ctx[0].RecvUnexpected(p.ctx[0].NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		r.Envelope.Free()
		*got = true
	})))
	require.NoError(t, p.ctx[1].SendUnexpected(p.ctx[1].NewOp(func(_ *na.Op, r na.Result) { require.NoError(t, r.Err) }), p.cls[0].Addr(), 1, []byte("hi")))
	return got
}

// put puts src into dst of context 0. done is set when it is complete.
func (p *contextPair) put(t *testing.T, src, dst []byte) (done *bool) {
	t.Helper()
	done = new(bool)
	here, err := p.cls[1].NewMem(src)
	require.NoError(t, err)
	there, err := p.cls[0].Register(na.WriteOnly, dst)
	require.NoError(t, err)
	require.NoError(t, p.ctx[1].Put(p.ctx[1].NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		*done = true
	}), here, 0, p.cls[0].Addr(), there.Key(), 0, int64(len(src))))
	return done
}

// TestBulkSocketRetried checks that the second socket is opened later if the process had no free
// descriptor.
func TestBulkSocketRetried(t *testing.T) {
	opened, err := openPolled(netip.MustParseAddrPort("127.0.0.1:0"), &sharedSocket{})
	require.NoError(t, err)
	t.Cleanup(opened.close)
	b := &opened.(*pollSocket).bulk
	require.True(t, b.shouldOpen())
	opening := time.Now()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	func() {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}))
		defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
		b.open()
	}()
	require.Equal(t, -1, b.fd)
	require.True(t, b.retryAt.After(opening), "another attempt is due at once")
	b.retryAt = time.Now().Add(time.Hour)
	require.False(t, b.shouldOpen())
	b.retryAt = opening
	require.True(t, b.shouldOpen())
	b.open()
	require.GreaterOrEqual(t, b.fd, 0)
	require.False(t, b.shouldOpen())
}

// TestMessageOvertakesBulk checks that a message that arrives behind bulk data is handled before most
// of it; and that everything arrives if the system has no second socket, too.
func TestMessageOvertakesBulk(t *testing.T) {
	for _, split := range []bool{true, false} {
		p := openPair(t)
		p.sock[0].bulk.final = !split
		src, dst := bytes.Repeat([]byte{7}, 3<<20), make([]byte, 3<<20)
		first := p.put(t, src[:1<<20], make([]byte, 1<<20)) // opens the second socket
		p.drive(t, "the first put", func() bool { return *first }, 0, 1)
		require.Equal(t, split, p.sock[0].bulk.fd >= 0)

		before := p.sock[1].bulkPackets()
		done := p.put(t, src, dst)
		p.drive(t, "bulk data is sent", func() bool { return p.sock[1].bulkPackets()-before >= len(src)/localSize }, 1)
		got := p.message(t)
		p.drive(t, "the message", func() bool { return *got }, 0)
		if placed := bytes.Count(dst, []byte{7}); split {
			require.Less(t, placed, len(src)/4, "bytes of bulk data that were handled before the message")
		}
		p.drive(t, "the put", func() bool { return *done }, 0, 1)
		require.Equal(t, src, dst)
	}
}

// TestFlushYieldsToInput checks that while datagrams are waiting to be read each pass of the leader
// sends one turn of bulk data, that a message is sent before the rest of the bulk data, and that
// everything is sent at once where nothing is waiting.
func TestFlushYieldsToInput(t *testing.T) {
	p := openPair(t)
	s := p.sock[1]
	src, dst := bytes.Repeat([]byte{7}, 3<<20), make([]byte, 3<<20)
	first := p.put(t, src, make([]byte, len(src))) // the peer then permits many packets
	p.drive(t, "the first put", func() bool { return *first }, 0, 1)

	s.sends, s.input = nil, true
	done := p.put(t, src, dst)
	require.Equal(t, 1, len(s.sends), "turns at the start of the put") // not Len, which prints the packets
	for i := 2; i < 5; i++ {
		_ = p.ctx[1].Progress(0)
		require.Equal(t, i, len(s.sends), "turns after a pass")
		require.LessOrEqual(t, len(s.sends[i-1]), turnBytes/localSize+1)
	}
	got := p.message(t)
	last := s.sends[len(s.sends)-1]
	require.False(t, last[0].Bulk(), "the message waits for bulk data")
	require.Less(t, s.bulkPackets(), len(src)/localSize/2, "the message waited for bulk data")

	s.input = false
	p.ctx[1].Trigger(0)
	_ = p.ctx[1].Progress(0)
	require.GreaterOrEqual(t, s.bulkPackets(), len(src)/localSize, "bulk data waits, and nothing is to be read")
	p.drive(t, "the put", func() bool { return *done && *got }, 0, 1)
	require.Equal(t, src, dst)
}
