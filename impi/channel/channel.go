package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// A Channel drives an impi.Agent over a connection. Its methods may be called by any number of goroutines.
type Channel struct {
	conn    net.Conn
	wake    chan struct{} // something may have to be written
	done    chan struct{} // the channel has ended
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below, and the fields of a Send or Receive that the agent has
	agent    *impi.Agent
	sends    map[*impi.Send]*Request
	receives map[*impi.Receive]*Request
	ended    bool // done is closed
}

// A Request is a send or a receive under way.
type Request struct {
	channel  *Channel
	send     *impi.Send
	receive  *impi.Receive
	ended    chan struct{}
	err      error         // once ended is closed
	answered chan struct{} // nil until the peer is asked to cancel
	answer   impi.Answer   // once answered is closed

	over, asked bool // the lock is held: ended is closed; answered is neither nil nor closed
}

// Open returns a channel over conn, on which nothing has been sent, and starts to read and write. The channel owns conn. The
// error is that of impi.NewAgent, and conn stays as it was then. Call Close in the end.
func Open(conn net.Conn, config impi.AgentConfig) (*Channel, error) {
	agent, err := impi.NewAgent(config)
	if err != nil {
		return nil, err
	}
	c := &Channel{
		conn:     conn,
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		agent:    agent,
		sends:    map[*impi.Send]*Request{},
		receives: map[*impi.Receive]*Request{},
	}
	c.running.Go(c.read)
	c.running.Go(c.write)
	return c, nil
}

// Send starts to send s, which belongs to the channel until the Request has ended. It does not block. Its errors are those of
// impi.Agent.Send.
func (c *Channel) Send(s *impi.Send) (*Request, error) {
	return begin(c, c.sends, s, c.agent.Send, &Request{send: s})
}

// Receive starts to receive r, which belongs to the channel until the Request has ended. It does not block. Its errors are
// those of impi.Agent.Receive.
func (c *Channel) Receive(r *impi.Receive) (*Request, error) {
	return begin(c, c.receives, r, c.agent.Receive, &Request{receive: r})
}

// begin starts what r is of, and notes it.
func begin[K comparable](c *Channel, active map[K]*Request, what K, start func(K) error, r *Request) (*Request, error) {
	c.mu.Lock()
	defer c.unlock()
	if active[what] != nil {
		return nil, impi.ErrActive
	}
	if err := start(what); err != nil {
		return nil, err
	}
	r.channel, r.ended = c, make(chan struct{})
	active[what] = r
	return r, nil
}

// Probe is impi.Agent.Probe.
func (c *Channel) Probe(m impi.Match) (impi.Packet, bool) {
	c.mu.Lock()
	defer c.unlock()
	return c.agent.Probe(m)
}

// Stats is impi.Agent.Stats.
func (c *Channel) Stats() impi.AgentStats {
	c.mu.Lock()
	defer c.unlock()
	return c.agent.Stats()
}

// Wait waits until r has ended and returns its error: that of the Sent or the Received event. If ctx ends first Wait returns its
// error, and r goes on.
func (r *Request) Wait(ctx context.Context) error {
	if err := wait(ctx, r.ended); err != nil {
		return err
	}
	return r.err
}

// wait waits for done, which counts even if ctx has ended too.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cancel takes the message or the receive back, and returns what came of it. It asks the peer and waits for its answer only
// where impi.Agent.Cancel says so; several calls ask once and all return that answer. If ctx ends first Cancel returns Unknown and
// the error of ctx, and the question stands: a later call waits for the same answer.
func (r *Request) Cancel(ctx context.Context) (impi.Answer, error) {
	answer, answered := r.startCancel()
	if answered == nil {
		return answer, nil
	}
	if err := wait(ctx, answered); err != nil {
		return impi.Unknown, err
	}
	return r.answer, nil
}

// startCancel returns the answer, or a channel that is closed when r.answer is the answer.
func (r *Request) startCancel() (impi.Answer, <-chan struct{}) {
	c := r.channel
	c.mu.Lock()
	defer c.unlock()
	switch {
	case r.answered != nil:
		return impi.Asked, r.answered
	case r.over:
		return r.late(), nil
	case r.receive != nil:
		return c.agent.CancelReceive(r.receive), nil
	}
	answer := c.agent.Cancel(r.send)
	if answer == impi.Asked {
		r.asked, r.answered = true, make(chan struct{})
	}
	return answer, r.answered
}

// late returns the answer to a cancel of r, which has ended without one.
func (r *Request) late() impi.Answer {
	switch {
	case errors.Is(r.err, impi.ErrCanceled):
		return impi.Canceled
	case errors.Is(r.err, impi.ErrUnknown):
		return impi.Unknown
	}
	return impi.TooLate
}

// Finish ends the channel in good order: it waits until all that was sent has left and the peer's agent has finished too, then
// closes the connection. Sends must have ended, else it fails with ErrActive. It fails with the reason if the channel ends before
// that, and with the error of ctx if that ends first; call Close then.
func (c *Channel) Finish(ctx context.Context) error {
	if err := c.startFinish(); err != nil {
		return err
	}
	if err := wait(ctx, c.done); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if c.agent.Finished() {
		return nil
	}
	return c.agent.Err()
}

func (c *Channel) startFinish() error {
	c.mu.Lock()
	defer c.unlock()
	return c.agent.Finish()
}

// Close closes the connection. Everything that is active ends with an error that wraps net.ErrClosed. What is held can still be
// received, but for long messages. Close returns when the channel reads and writes no more.
func (c *Channel) Close() error {
	c.fail(net.ErrClosed)
	c.running.Wait()
	return nil
}

func (c *Channel) fail(err error) {
	c.failAgent(err)
	c.conn.Close()
}

func (c *Channel) failAgent(err error) {
	c.mu.Lock()
	defer c.unlock()
	c.agent.Fail(err)
}

// unlock lets go of mu, after what was done with it held is told to all whom it concerns, the writer among them.
func (c *Channel) unlock() {
	defer c.mu.Unlock()
	c.settle()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// settle ends the requests whose operations have ended. The lock is held.
func (c *Channel) settle() {
	for e, ok := c.agent.NextEvent(); ok; e, ok = c.agent.NextEvent() {
		c.deliver(e)
	}
	if c.agent.Err() != nil && !c.ended {
		c.ended = true
		close(c.done)
	}
}

func (c *Channel) deliver(e impi.Event) {
	if e.Kind == impi.Received {
		r := c.receives[e.Receive]
		delete(c.receives, e.Receive)
		r.end(e.Err)
		return
	}
	r := c.sends[e.Send]
	if e.Kind == impi.Sent {
		r.end(e.Err)
	} else {
		r.asked, r.answer = false, e.Answer
		close(r.answered)
	}
	if r.over && !r.asked {
		delete(c.sends, e.Send)
	}
}

func (r *Request) end(err error) {
	r.over, r.err = true, err
	close(r.ended)
}

// read gives the agent what comes, until the connection ends or the peer breaks the protocol.
func (c *Channel) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.conn.Read(buf)
		if bad := c.input(buf[:n]); bad != nil {
			err = bad
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Channel) input(b []byte) error {
	c.mu.Lock()
	defer c.unlock()
	return c.agent.Input(b)
}

// write sends what the agent has to send, some packets at a time.
func (c *Channel) write() {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		for {
			if buf = c.output(buf[:0]); len(buf) == 0 {
				break
			}
			if _, err := c.conn.Write(buf); err != nil {
				c.fail(err)
				return
			}
		}
		if c.isFinished() {
			c.closeWrite()
			return
		}
	}
}

// output returns packets to write, 64 KiB and one packet at most.
func (c *Channel) output(buf []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for more := true; more && len(buf) < 64<<10; {
		buf, more = c.agent.NextPacket(buf)
	}
	c.settle()
	return buf
}

func (c *Channel) isFinished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agent.Finished()
}

// closeWrite says that all is written. The peer does the same, and then there is nothing more to read: a connection that is
// closed earlier could lose what the peer has not read.
func (c *Channel) closeWrite() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	c.fail(io.EOF)
}
