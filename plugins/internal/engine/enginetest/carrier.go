package enginetest

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/stream"
)

// A carrier is the side of one context. It waits by letting the clock pass.
type carrier struct {
	net *Net
	e   *engine.Endpoint

	polling sync.Mutex // held by the goroutine that polls

	mu     sync.Mutex // guards the fields below
	shut   bool
	conns  []*conn
	failed []failure
}

// failure is a dial that the next Poll reports.
type failure struct {
	l   *engine.Link
	err error
}

// A conn is one end of a connection.
type conn struct {
	c      *carrier
	rx, tx *pipe
	in     stream.In // of the goroutine that polls
	cut    bool      // guarded by the endpoint's lock
	last   []byte    // likewise

	w    sync.Mutex // guards out; taken before the endpoint's lock
	out  stream.Out
	gone bool
}

var (
	_ engine.Carrier = (*carrier)(nil)
	_ na.Driver      = (*carrier)(nil)
)

// Drive implements na.Driver.
func (c *carrier) Drive(timeout time.Duration, ready func() bool) bool {
	deadline := c.net.Now() + timeout
	for {
		now := c.net.Now()
		next := c.e.Poll(now)
		if ready() {
			return true
		}
		if timeout >= 0 && now >= deadline {
			return false
		}
		to := deadline
		if next != 0 && (timeout < 0 || next < deadline) {
			to = max(next, now+time.Microsecond)
		} else if timeout < 0 {
			return false // nothing can ever happen
		}
		c.net.Advance(to - now)
	}
}

// Wake implements na.Driver: nobody sleeps in Drive.
func (c *carrier) Wake() {}

// FlushSoon implements na.Driver: whoever waits polls.
func (c *carrier) FlushSoon() {}

// Check implements engine.Carrier.
func (c *carrier) Check(name string) error {
	if strings.HasPrefix(name, "mem://@") {
		return na.WithText(na.ErrUnreachable, name+" does not listen")
	}
	return nil
}

// Resolve implements engine.Carrier.
func (c *carrier) Resolve(text string, done func(string, error)) func() {
	if text == Pending {
		return func() {}
	}
	done(text, nil)
	return nil
}

// Dial implements engine.Carrier.
func (c *carrier) Dial(l *engine.Link) {
	there, back := &pipe{}, &pipe{}
	if accept := c.net.stranger(l.Name()); accept != nil {
		accept(&Raw{rx: there, tx: back})
	} else if to, err := c.net.find(l.Name(), l.Target()); err == nil {
		to.accept(there, back, nil)
	} else {
		c.mu.Lock()
		c.failed = append(c.failed, failure{l, err})
		c.mu.Unlock()
		return
	}
	mine := &conn{c: c, rx: back, tx: there}
	mine.in.Link, mine.out.Link = l, l
	l.Conn = mine
	c.add(mine)
}

// accept takes in a connection that somebody has made. verify, if set, tells whether he is who he says.
func (c *carrier) accept(rx, tx *pipe, verify func(name string) bool) {
	cn := &conn{c: c, rx: rx, tx: tx}
	cn.in.Greet = func(g *frame.Greeting) error {
		l, err := c.e.Admit(c, cn, g, verify == nil || verify(g.Listen))
		cn.in.Link, cn.out.Link = l, l
		return err
	}
	c.add(cn)
}

func (c *carrier) add(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		cn.tx.close()
		return
	}
	c.conns = append(c.conns, cn)
}

// Flush implements engine.Carrier.
func (c *carrier) Flush(ls []*engine.Link) {
	for _, l := range ls {
		if cn, _ := l.Conn.(*conn); cn != nil {
			c.e.Pause()
			cn.flush()
			c.e.Lock()
		}
	}
}

// Cut implements engine.Carrier.
func (c *carrier) Cut(l *engine.Link, bye frame.Bye) {
	if cn, ok := l.Conn.(*conn); ok {
		cn.cut, cn.last = true, bye.Frame()
		l.Conn = nil
	}
}

// Poll implements engine.Carrier.
func (c *carrier) Poll(time.Duration) time.Duration {
	if !c.polling.TryLock() {
		return 0
	}
	defer c.polling.Unlock()
	c.mu.Lock()
	conns, failed := slices.Clone(c.conns), c.failed
	c.failed = nil
	c.mu.Unlock()
	for _, f := range failed {
		c.e.Lock()
		if !f.l.Up() {
			f.l.Fail(f.err)
		}
		c.e.Unlock()
	}
	for _, cn := range conns {
		cn.read()
		if cn.flush() {
			c.mu.Lock()
			c.conns = slices.DeleteFunc(c.conns, func(x *conn) bool { return x == cn })
			c.mu.Unlock()
		}
	}
	return 0
}

// Lingering implements engine.Carrier.
func (c *carrier) Lingering(time.Duration) bool { return false }

// Shut implements engine.Carrier.
func (c *carrier) Shut() {
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
}

// Release implements engine.Carrier.
func (c *carrier) Release() {
	c.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	for _, cn := range conns {
		cn.flush()
		cn.tx.close()
	}
	c.net.mu.Lock()
	delete(c.net.carriers, c.e)
	c.net.mu.Unlock()
}

// read takes in what has arrived.
func (cn *conn) read() {
	e := cn.c.e
	for {
		e.Lock()
		cut := cn.cut
		e.Unlock()
		if cut {
			return
		}
		n, over := cn.rx.read(cn.in.Scatter(nil), cn.c.net.Slice)
		cn.in.Got(n)
		e.Lock()
		err := cn.in.Parse()
		if over && err == nil {
			err = na.WithText(na.ErrPeerLost, "the connection ended")
		}
		switch {
		case err == nil:
		case cn.in.Link != nil:
			cn.in.Link.Fail(err)
		default:
			cn.cut, cn.last = true, frame.ByeOf(err).Frame()
		}
		e.Unlock()
		if n == 0 {
			return
		}
	}
}

// flush sends what there is room for; the last frame of the session goes beyond it. It reports whether that was it.
func (cn *conn) flush() (gone bool) {
	cn.w.Lock()
	defer cn.w.Unlock()
	e := cn.c.e
	for !cn.gone {
		e.Lock()
		cut := cn.cut
		more := !cut && cn.out.Link != nil && cn.out.Fill()
		if cut {
			more = len(cn.last) > 0 && cn.out.Last(cn.last)
			cn.gone = true
		}
		e.Pause()
		if more {
			room := cn.c.net.room()
			if cut {
				room = 1 << 30
			}
			n := cn.tx.write(cn.out.Gather(nil), room)
			cn.out.Wrote(n)
			more = n > 0
		}
		if cut {
			cn.tx.close()
		}
		if !more {
			break
		}
	}
	return cn.gone
}
