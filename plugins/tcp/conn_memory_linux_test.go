package tcp_test

import (
	"flag"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

var halves = flag.Int("tcp.halves", long.Or(500, 2000), "peers of TestPartialHeader")

// TestPartialHeader checks that a peer that has begun a frame and does not complete it costs as
// little as an idle one, in addition to what is reserved for it.
func TestPartialHeader(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		const each = 4 << 10
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		at, err := net.ResolveTCPAddr("tcp", hostPort(n))
		require.NoError(t, err)
		half := mail.Append(nil, []byte("hello"))[:frame.HeaderSize/2]
		dial := func() (fd int) { // the peer's side takes no memory of the process
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			t.Cleanup(func() { _ = unix.Close(fd) })
			require.NoError(t, unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte{127, 0, 0, 1}}))
			hello := helloFrame(func(g *frame.Greeting) { g.Want = 1 })
			_, err = unix.Write(fd, hello)
			require.NoError(t, err)
			return fd
		}
		peers := func(want int) func() bool { return func() bool { return n.ctx().Stats().Peers == want } }
		for i := range 20 { // memory kept for all
			dial()
			driveUntil(t, "the first", peers(i+1), n)
		}
		for name, more := range map[string][]byte{"idle": nil, "half a header": half} {
			before, first, reserved := heapInUse(), n.ctx().Stats().Peers, n.ctx().Stats().Reserved
			fds := make([]int, *halves)
			for i := range fds {
				fds[i] = dial()
				if i%100 == 99 {
					driveUntil(t, name, peers(first+i+1), n)
				}
			}
			driveUntil(t, name, peers(first+*halves), n)
			for _, fd := range fds {
				_, err := unix.Write(fd, more)
				require.NoError(t, err)
			}
			var used, reserve int64
			for try := range 20 { // the memory of goroutines that have not finished a handshake is not kept, nor is that of a pool
				driveUntilStalled(n)
				used, reserve = (heapInUse()-before)/int64(*halves), (n.ctx().Stats().Reserved-reserved)/int64(*halves)
				if raceflag.Enabled { // which takes memory of its own
					used /= 4
				}
				if try > 0 && used-reserve <= each {
					break
				}
			}
			t.Logf("%s: %d bytes each, %d reserved", name, used, reserve)
			require.LessOrEqual(t, used-reserve, int64(each), name)
		}
	})
}
