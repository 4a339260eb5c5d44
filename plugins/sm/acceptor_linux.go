package sm

import (
	"fmt"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"golang.org/x/sys/unix"
)

// An acceptor holds a class's listening socket. The pollers of all the class's contexts watch it,
// and any context accepts connections for all of them. A peer can therefore reach its context even
// while no goroutine polls the others.
type acceptor struct {
	mu       sync.Mutex        // guards the fields below and calls to accept; may be acquired while an endpoint's lock is held
	listener *listener         // nil if the class does not listen or no longer listens
	contexts []*contextCarrier // contexts that have not been shut down
}

// open starts listening on the name rest, unless rest is empty.
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

// close closes the listening socket, unless a context has already done so.
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

// targetCarrier returns the carrier of the open context with the given ID, or an error if there is
// none. If the caller holds the lock of that context's endpoint, the context stays open until the
// caller releases the lock.
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

// An acceptorFD is the carrier.Pollable for the listening socket in a context's poller.
type acceptorFD contextCarrier

// Ready implements carrier.Pollable. It accepts connections.
func (f *acceptorFD) Ready(_, _ bool) {
	c := (*contextCarrier)(f)
	for range 64 { // limited, so that established peers get their turn
		fd, ok := c.accept()
		if !ok {
			return
		}
		c.handleConn(fd)
	}
}

// accept accepts a connection. If the process has no free file descriptors, it stops watching the
// listening socket for starvedPause.
func (c *contextCarrier) accept() (fd int, ok bool) {
	fd, err := c.d.acceptor.accept()
	switch err {
	case nil:
		return fd, true
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS:
		// The socket remains readable, so the poller would spin.
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

// watchListenerLocked adds the listening socket to the context's poller or, if on is false, removes
// it. The endpoint's lock must be held.
func (c *contextCarrier) watchListenerLocked(on bool) {
	d := &c.d.acceptor
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.watching {
		_ = c.poller.Watch(d.listener.fd, c.listenerID, on, false)
	}
}
