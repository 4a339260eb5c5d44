package sm

import (
	"fmt"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"golang.org/x/sys/unix"
)

// A acceptor is the listening socket of a class. The pollers of all its contexts watch it, and the first context that is awake accepts: peers
// reach one context although nobody drives another.
type acceptor struct {
	mu    sync.Mutex        // guards the fields below, and accept; taken inside an endpoint's lock
	place *socketPlace      // nil: nobody comes in
	open  []*contextCarrier // that have not been shut
}

func (d *domain) open(rest string) error {
	if rest == "" {
		return nil
	}
	p, name, err := d.opts.listen(rest)
	if err != nil {
		return err
	}
	d.names.self, d.door.place = scheme+"://"+name, p
	return nil
}

// close gives the name back if no context ever did.
func (d *domain) close() error {
	d.door.mu.Lock()
	defer d.door.mu.Unlock()
	d.door.closeListener()
	return nil
}

func (p *acceptor) closeListener() {
	if p.place != nil {
		p.place.close()
		p.place = nil
	}
}

// targetCarrier returns the open carrier of the context that a peer names. It stays open while its endpoint is locked.
func (d *domain) targetCarrier(id int) (*contextCarrier, error) {
	d.door.mu.Lock()
	defer d.door.mu.Unlock()
	for _, c := range d.door.open {
		if c.e.ID() == id {
			return c, nil
		}
	}
	return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("there is no context %d", id))
}

type acceptorFD contextCarrier

// Ready implements carrier.Pollable: it lets in those who wait at the door.
func (f *acceptorFD) Ready(_, _ bool) {
	c := (*contextCarrier)(f)
	for range 64 { // then the peers that are there get their turn
		fd, ok := c.accept()
		if !ok {
			return
		}
		c.letIn(fd)
	}
}

func (c *contextCarrier) accept() (fd int, ok bool) {
	fd, err := c.d.door.accept()
	switch err {
	case nil:
		return fd, true
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS: // who waits stays there, so the poller would say so without end
		c.e.Lock()
		c.doorShut = c.d.now() + restTime
		c.watchDoor(false)
		c.pollSoon()
		c.e.Unlock()
	}
	return -1, false
}

func (d *acceptor) accept() (fd int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.place == nil {
		return -1, unix.EAGAIN
	}
	fd, _, err = unix.Accept4(d.place.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	return fd, err
}

// watchDoor says whether it is of interest who waits at the door. Locked.
func (c *contextCarrier) watchDoor(on bool) {
	d := &c.d.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.watching {
		_ = c.poller.Watch(d.place.fd, c.id, on, false)
	}
}
