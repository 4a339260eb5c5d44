//go:build !unix

package mercury

import "net"

// A nonblockingIO is never created on these systems.
type nonblockingIO struct{}

// newNonblockingIO returns nil, so that reads and writes block.
func newNonblockingIO(net.Conn) (write, read *nonblockingIO) { return nil, nil }

func (*nonblockingIO) transfer(buffer, bool) (n int, ready bool, err error) { return 0, false, nil }
