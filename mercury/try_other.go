//go:build !unix

package mercury

import "net"

// A try is a way to use a socket without waiting, which this system does not have.
type try struct{}

func newTries(net.Conn) (write, read *try) { return nil, nil }

func (*try) some([]byte) (n int, ready bool, err error) { return 0, false, nil }

func (*try) from(*memory, uint64, uint64, bool) (done int, there bool, err error) {
	return 0, true, nil
}
