package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// A Channel drives an impi.Agent over a connection. It is safe for concurrent use.
type Channel struct {
	conn       net.Conn
	wake       chan struct{} // one slot; wakes writeLoop
	done       chan struct{} // closed once agent.Err is not nil
	goroutines sync.WaitGroup

	mu         sync.Mutex // guards the fields below, and each Send and Receive that belongs to the agent
	agent      *impi.Agent
	sends      map[*impi.Send]*Request
	receives   map[*impi.Receive]*Request
	doneClosed bool // done has been closed
}

// A Request is an active send or receive.
type Request struct {
	channel  *Channel
	send     *impi.Send    // nil for a receive
	receive  *impi.Receive // nil for a send
	done     chan struct{} // closed when the send or receive has completed
	err      error         // valid once done is closed
	answered chan struct{} // closed when the peer has replied to a cancel request; nil until one is sent
	answer   impi.Answer   // valid once answered is closed

	// The following fields are guarded by Channel.mu.
	isDone       bool // done has been closed
	awaitsAnswer bool // a cancel request has been sent, and answered has not been closed
}

// Open returns a channel over conn, on which no bytes have been sent, and starts reading and writing. The channel
// takes ownership of conn, and the caller must eventually call Close. Errors are those of impi.NewAgent, in which
// case the caller retains ownership of conn.
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

// Send starts sending s, which belongs to the channel until the Request has completed. It does not block. Errors are
// those of impi.Agent.Send.
func (c *Channel) Send(s *impi.Send) (*Request, error) {
	return startOp(c, c.sends, s, c.agent.Send, &Request{send: s})
}

// Receive starts r, which belongs to the channel until the Request has completed. It does not block. Errors are those
// of impi.Agent.Receive.
func (c *Channel) Receive(r *impi.Receive) (*Request, error) {
	return startOp(c, c.receives, r, c.agent.Receive, &Request{receive: r})
}

// startOp calls start with op and, if start succeeds, adds r, the Request for op, to active.
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

// Probe returns the header of the held message that a Receive with m would receive. See impi.Agent.Probe.
func (c *Channel) Probe(m impi.Match) (impi.Packet, bool) {
	c.mu.Lock()
	defer c.settleAndUnlock()
	return c.agent.Probe(m)
}

// Stats returns the agent's gauges.
func (c *Channel) Stats() impi.AgentStats {
	c.mu.Lock()
	defer c.settleAndUnlock()
	return c.agent.Stats()
}

// Wait blocks until r has completed and returns the error of its Sent or Received event. If ctx is done first, Wait
// returns ctx.Err() and r continues.
func (r *Request) Wait(ctx context.Context) error {
	if err := wait(ctx, r.done); err != nil {
		return err
	}
	return r.err
}

// wait waits until done is closed or ctx is done. If both are the case, it returns nil.
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

// Cancel attempts to cancel the send or receive and returns the outcome, which is never impi.Asked. It blocks only if
// a request must be sent to the peer (see impi.Agent.Cancel). If Cancel is called several times, one request is sent,
// and all calls return its answer. If ctx is done first, Cancel returns impi.Unknown and ctx.Err(). A later call
// waits for the same answer.
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

// startCancel starts the cancellation of r. It returns the answer or, if a request must be sent to the peer, a
// channel that is closed when r.answer is set.
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

// answerAfterEnd returns the answer to a cancellation of r after r has completed.
func (r *Request) answerAfterEnd() impi.Answer {
	switch {
	case errors.Is(r.err, impi.ErrCanceled):
		return impi.Canceled
	case errors.Is(r.err, impi.ErrUnknown):
		return impi.Unknown
	}
	return impi.TooLate
}

// Finish shuts down the channel gracefully. It blocks until all packets have been written and the peer's agent has
// finished as well, and closes the connection. It fails with impi.ErrActive if a send is active, with the channel's
// error if the channel closes first, and with ctx.Err() if ctx is done first. If Finish fails, the caller should call
// Close.
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

// Close closes the connection and blocks until the channel's goroutines have exited. Active operations fail with an
// error that matches net.ErrClosed. Held messages other than long ones can still be received.
func (c *Channel) Close() error {
	c.fail(net.ErrClosed)
	c.goroutines.Wait()
	return nil
}

// fail closes the channel with err and closes the connection.
func (c *Channel) fail(err error) {
	c.failAgent(err)
	c.conn.Close()
}

func (c *Channel) failAgent(err error) {
	c.mu.Lock()
	defer c.settleAndUnlock()
	c.agent.Fail(err)
}

// settleAndUnlock completes the requests whose operations have completed, wakes writeLoop, and unlocks c.mu.
func (c *Channel) settleAndUnlock() {
	defer c.mu.Unlock()
	c.settleLocked()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// settleLocked completes the requests whose operations have completed. c.mu must be held.
func (c *Channel) settleLocked() {
	for e, ok := c.agent.NextEvent(); ok; e, ok = c.agent.NextEvent() {
		c.handleEventLocked(e)
	}
	if c.agent.Err() != nil && !c.doneClosed {
		c.doneClosed = true
		close(c.done)
	}
}

// handleEventLocked handles an event of the agent. It completes the request to which the event refers, or the
// cancellation of that request. c.mu must be held.
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

// completeLocked completes r with err. The channel's mu must be held.
func (r *Request) completeLocked(err error) {
	r.isDone, r.err = true, err
	close(r.done)
}

// readLoop passes bytes received from the peer to the agent, until the connection ends or the peer violates the
// protocol.
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

// writeLoop writes the agent's packets, several at a time.
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

// takePackets appends packets to buf until it holds at least 64 KiB or no more packets are available.
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
// connection immediately could reset it, and the peer could lose bytes that it has not yet read.
func (c *Channel) closeWrite() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	c.fail(io.EOF)
}
