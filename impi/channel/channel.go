package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// A Channel drives an impi.Agent over a connection. Several goroutines may call its methods.
type Channel struct {
	conn       net.Conn
	wake       chan struct{} // one slot; wakes writeLoop
	done       chan struct{} // closed when the channel has ended
	goroutines sync.WaitGroup

	mu         sync.Mutex // guards the fields below, and each Send and Receive that belongs to the agent
	agent      *impi.Agent
	sends      map[*impi.Send]*Request
	receives   map[*impi.Receive]*Request
	doneClosed bool // done is closed
}

// A Request is an active send or receive.
type Request struct {
	channel  *Channel
	send     *impi.Send    // nil for a receive
	receive  *impi.Receive // nil for a send
	done     chan struct{} // closed when the send or receive has ended
	err      error         // valid once done is closed
	answered chan struct{} // closed when the peer has replied to a cancel request; nil before one is sent
	answer   impi.Answer   // valid once answered is closed

	// Channel.mu guards these fields.
	isDone       bool // done is closed
	awaitsAnswer bool // a cancel request was sent and answered is not closed
}

// Open returns a channel over conn, on which no bytes were sent, and starts to read and write. The channel owns conn;
// call Close in the end. The error is that of impi.NewAgent; conn stays with the caller then.
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
	c.goroutines.Go(c.readLoop)
	c.goroutines.Go(c.writeLoop)
	return c, nil
}

// Send starts to send s, which belongs to the channel until the Request has ended. It does not block. The errors are
// those of impi.Agent.Send.
func (c *Channel) Send(s *impi.Send) (*Request, error) {
	return startOp(c, c.sends, s, c.agent.Send, &Request{send: s})
}

// Receive starts r, which belongs to the channel until the Request has ended. It does not block. The errors are those
// of impi.Agent.Receive.
func (c *Channel) Receive(r *impi.Receive) (*Request, error) {
	return startOp(c, c.receives, r, c.agent.Receive, &Request{receive: r})
}

// startOp calls start with op, and adds r, its Request, to active.
func startOp[K comparable](c *Channel, active map[K]*Request, op K, start func(K) error, r *Request) (*Request, error) {
	c.mu.Lock()
	defer c.settleAndUnlock()
	if active[op] != nil {
		return nil, impi.ErrActive
	}
	if err := start(op); err != nil {
		return nil, err
	}
	r.channel, r.done = c, make(chan struct{})
	active[op] = r
	return r, nil
}

// Probe is impi.Agent.Probe.
func (c *Channel) Probe(m impi.Match) (impi.Packet, bool) {
	c.mu.Lock()
	defer c.settleAndUnlock()
	return c.agent.Probe(m)
}

// Stats is impi.Agent.Stats.
func (c *Channel) Stats() impi.AgentStats {
	c.mu.Lock()
	defer c.settleAndUnlock()
	return c.agent.Stats()
}

// Wait blocks until r has ended and returns the error of its Sent or Received event. If ctx is done first, Wait returns
// ctx.Err() and r continues.
func (r *Request) Wait(ctx context.Context) error {
	if err := wait(ctx, r.done); err != nil {
		return err
	}
	return r.err
}

// wait waits for done or ctx. If both are done, it returns nil.
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

// Cancel cancels the send or receive, and returns the outcome, never impi.Asked. It blocks only if the peer must be
// asked; see impi.Agent.Cancel. Several calls send one request, and all return its answer. If ctx is done first,
// Cancel returns impi.Unknown and ctx.Err(); a later call waits for the same answer.
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

// startCancel returns the answer, or, if the peer must be asked, a channel that is closed when r.answer is set.
func (r *Request) startCancel() (impi.Answer, <-chan struct{}) {
	c := r.channel
	c.mu.Lock()
	defer c.settleAndUnlock()
	switch {
	case r.answered != nil:
		return impi.Asked, r.answered
	case r.isDone:
		return r.answerAfterEnd(), nil
	case r.receive != nil:
		return c.agent.CancelReceive(r.receive), nil
	}
	answer := c.agent.Cancel(r.send)
	if answer == impi.Asked {
		r.awaitsAnswer, r.answered = true, make(chan struct{})
	}
	return answer, r.answered
}

// answerAfterEnd returns the answer to a cancel of r after r has ended.
func (r *Request) answerAfterEnd() impi.Answer {
	switch {
	case errors.Is(r.err, impi.ErrCanceled):
		return impi.Canceled
	case errors.Is(r.err, impi.ErrUnknown):
		return impi.Unknown
	}
	return impi.TooLate
}

// Finish shuts the channel down gracefully: it blocks until all packets are written and the agent of the peer has
// finished, too, and closes the connection. It fails with impi.ErrActive if a send is active, with the error of the
// channel if that ends before, and with ctx.Err() if ctx is done first; call Close then.
func (c *Channel) Finish(ctx context.Context) error {
	if err := c.startFinish(); err != nil {
		return err
	}
	if err := wait(ctx, c.done); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.settleAndUnlock()
	if c.agent.Finished() {
		return nil
	}
	return c.agent.Err()
}

func (c *Channel) startFinish() error {
	c.mu.Lock()
	defer c.settleAndUnlock()
	return c.agent.Finish()
}

// Close closes the connection, and blocks until the goroutines of the channel have ended. Active operations end with
// an error that wraps net.ErrClosed. Held messages can still be received, except long ones.
func (c *Channel) Close() error {
	c.fail(net.ErrClosed)
	c.goroutines.Wait()
	return nil
}

// fail ends the channel with err and closes the connection.
func (c *Channel) fail(err error) {
	c.failAgent(err)
	c.conn.Close()
}

func (c *Channel) failAgent(err error) {
	c.mu.Lock()
	defer c.settleAndUnlock()
	c.agent.Fail(err)
}

// settleAndUnlock completes the requests whose operations have ended, wakes writeLoop, and unlocks mu.
func (c *Channel) settleAndUnlock() {
	defer c.mu.Unlock()
	c.settleLocked()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// settleLocked completes the requests whose operations have ended.
func (c *Channel) settleLocked() {
	for e, ok := c.agent.NextEvent(); ok; e, ok = c.agent.NextEvent() {
		c.handleEventLocked(e)
	}
	if c.agent.Err() != nil && !c.doneClosed {
		c.doneClosed = true
		close(c.done)
	}
}

// handleEventLocked completes the request of an event.
func (c *Channel) handleEventLocked(e impi.Event) {
	if e.Kind == impi.Received {
		r := c.receives[e.Receive]
		delete(c.receives, e.Receive)
		r.completeLocked(e.Err)
		return
	}
	r := c.sends[e.Send]
	if e.Kind == impi.Sent {
		r.completeLocked(e.Err)
	} else {
		r.awaitsAnswer, r.answer = false, e.Answer
		close(r.answered)
	}
	if r.isDone && !r.awaitsAnswer {
		delete(c.sends, e.Send)
	}
}

// completeLocked ends r with err.
func (r *Request) completeLocked(err error) {
	r.isDone, r.err = true, err
	close(r.done)
}

// readLoop passes bytes of the peer to the agent, until the connection ends or the peer violates the protocol.
func (c *Channel) readLoop() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.conn.Read(buf)
		if bad := c.handleInput(buf[:n]); bad != nil {
			err = bad
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Channel) handleInput(b []byte) error {
	c.mu.Lock()
	defer c.settleAndUnlock()
	return c.agent.Input(b)
}

// writeLoop writes the packets of the agent, several at a time.
func (c *Channel) writeLoop() {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		for {
			buf = c.takePackets(buf[:0])
			if len(buf) == 0 {
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

// takePackets appends packets to buf, until they have 64 KiB or there are no more.
func (c *Channel) takePackets(buf []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for more := true; more && len(buf) < 64<<10; {
		buf, more = c.agent.NextPacket(buf)
	}
	c.settleLocked()
	return buf
}

func (c *Channel) isFinished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agent.Finished()
}

// closeWrite closes the writing side after the last packet. The peer does the same, which ends readLoop. Closing the
// connection at once could reset it, and the peer could lose bytes that it has not read.
func (c *Channel) closeWrite() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	c.fail(io.EOF)
}
