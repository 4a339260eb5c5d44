package soak

import (
	"io"
	"net"
	"sync"
)

// A relay forwards connections to a target. It can reset the connections and hold back their data in either direction.
type relay struct {
	lis net.Listener
	all sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	to    string     // target's address; "" before setTarget is called
	moved sync.Cond  // signals a change of held or ended
	conns map[net.Conn]bool
	held  int // directions in which data is held back, as a bit set: 1 is to the target, 2 is from it
	stuck int // number of times that data was held back since the last call to holdBack
	ended bool
}

func newRelay() (*relay, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{lis: lis, conns: map[net.Conn]bool{}}
	r.moved.L = &r.mu
	r.all.Go(r.accept)
	return r, nil
}

func (r *relay) addr() string { return r.lis.Addr().String() }

// setTarget sets the address to which new connections are forwarded.
func (r *relay) setTarget(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
}

func (r *relay) accept() {
	for {
		near, err := r.lis.Accept()
		if err != nil {
			return
		}
		r.all.Go(func() { r.join(near) })
	}
}

// join connects to the target and forwards data between near and the new connection. If the target cannot be reached,
// it resets near.
func (r *relay) join(near net.Conn) {
	if !r.addConn(near) {
		return
	}
	r.mu.Lock()
	to := r.to
	r.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil || !r.addConn(far) {
		r.dropConn(near)
		return
	}
	r.all.Go(func() { r.forward(far, near, 1) })
	r.forward(near, far, 2)
}

// addConn registers c. If the relay is closed, addConn closes c and returns false.
func (r *relay) addConn(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		_ = c.Close()
		return false
	}
	r.conns[c] = true
	return true
}

// dropConn resets c and removes it from the relay.
func (r *relay) dropConn(c net.Conn) {
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// forward copies data from the connection from to the connection to, and waits while the direction is held back. When
// it is done or an error occurs, it resets both connections.
func (r *relay) forward(to, from net.Conn, direction int) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.wait(direction)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				break
			}
		}
		if err == io.EOF {
			_ = to.(*net.TCPConn).CloseWrite()
		}
		if err != nil {
			break
		}
	}
	r.dropConn(from)
	r.dropConn(to)
}

// wait blocks while data in the given direction is held back and the relay is not closed.
func (r *relay) wait(direction int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held&direction != 0 {
		r.stuck++
	}
	for r.held&direction != 0 && !r.ended {
		r.moved.Wait()
	}
}

// holdBack holds back data in the given directions, and stops doing so in the others. The directions are a bit set: 1
// is to the target, 2 is from it. It returns the number of times that data was held back since the previous call.
func (r *relay) holdBack(directions int) (stuck int) {
	r.mu.Lock()
	r.held = directions
	stuck, r.stuck = r.stuck, 0
	r.mu.Unlock()
	r.moved.Broadcast()
	return stuck
}

// reset resets all connections and returns their number.
func (r *relay) reset() int {
	r.mu.Lock()
	var all []net.Conn
	for c := range r.conns {
		all = append(all, c)
	}
	r.mu.Unlock()
	for _, c := range all {
		r.dropConn(c)
	}
	return len(all)
}

// close closes the relay and its connections, and waits for its goroutines to return.
func (r *relay) close() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.moved.Broadcast()
	_ = r.lis.Close()
	r.reset()
	r.all.Wait()
}
