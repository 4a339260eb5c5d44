package sm

import (
	"fmt"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"golang.org/x/sys/unix"
)

// An acceptor is the listening socket of a class. The pollers of all its contexts watch it, and any
// context accepts for all: a peer reaches its context also while no goroutine polls another one.
type acceptor struct {
	mu       sync.Mutex        // guards the fields below, and accept; taken inside an endpoint's lock
	listener *listener         // nil: the class does not listen, or not any more
	contexts []*contextCarrier // the contexts that have not been shut
}

// open starts to listen at rest, if that is not empty.
func (d *domain) open(rest string) error {
	if rest == "" {
		return nil
	}
	p, name, err := d.opts.listen(rest)
	if err != nil {
		return err
	}
	d.names.self, d.acceptor.listener = scheme+"://"+name, p
	return nil
}

// close closes the listening socket, if no context has done so.
func (d *domain) close() error {
	d.acceptor.mu.Lock()
	defer d.acceptor.mu.Unlock()
	d.acceptor.closeListener()
	return nil
}

func (p *acceptor) closeListener() {
	if p.listener != nil {
		p.listener.close()
		p.listener = nil
	}
}

// targetCarrier returns the carrier of the open context with a number. It stays open while its
// endpoint is locked.
func (d *domain) targetCarrier(id int) (*contextCarrier, error) {
	d.acceptor.mu.Lock()
	defer d.acceptor.mu.Unlock()
	for _, c := range d.acceptor.contexts {
		if c.e.ID() == id {
			return c, nil
		}
	}
	return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("no such context: %d", id))
}

// An acceptorFD is the listening socket in the poller of a context.
type acceptorFD contextCarrier

// Ready implements carrier.Pollable: it accepts connections.
func (f *acceptorFD) Ready(_, _ bool) {
	c := (*contextCarrier)(f)
	for range 64 { // then it is the turn of the established peers
		fd, ok := c.accept()
		if !ok {
			return
		}
		c.handleConn(fd)
	}
}

// accept accepts a connection. If descriptors have run out it stops watching the socket for a
// while.
func (c *contextCarrier) accept() (fd int, ok bool) {
	fd, err := c.d.acceptor.accept()
	switch err {
	case nil:
		return fd, true
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS:
		// the socket stays readable, and the poller would spin
		c.e.Lock()
		c.acceptAt = c.d.now() + starvedPause
		c.watchListenerLocked(false)
		c.pollSoonLocked()
		c.e.Unlock()
	}
	return -1, false
}

func (d *acceptor) accept() (fd int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		return -1, unix.EAGAIN
	}
	fd, _, err = unix.Accept4(d.listener.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	return fd, err
}

// watchListenerLocked turns watching the listening socket on or off.
func (c *contextCarrier) watchListenerLocked(on bool) {
	d := &c.d.acceptor
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.watching {
		_ = c.poller.Watch(d.listener.fd, c.listenerID, on, false)
	}
}
