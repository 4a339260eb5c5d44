//go:build unix

package proctest

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A transport is a row of the table that the tests of faults run over.
type transport struct {
	name, origin string
	connected    bool // the end of a process is the end of its connections: its peers learn of it though nothing is open
}

var transports = []transport{
	{"tcp", "tcp://", true},
	{"udp", "udp://", false},
}

func init() {
	if runtime.GOOS == "linux" {
		transports = append(transports, transport{"sm", "sm://", true})
	}
}

// listeners counts the addresses that listen has given out.
var listeners atomic.Uint32

// listenAddr is where a target listens: where the machine has them, at an IP address of its own.
// The port of a target that is killed is free, and a target of another test, or another package's,
// that listened at the same address could be given it while calls to the dead one have to fail.
func (tr transport) listenAddr() string {
	switch {
	case tr.name == "sm":
		return "sm://*"
	case runtime.GOOS != "linux": // which alone has all of 127/8
		return tr.origin + "127.0.0.1:0"
	}
	pid, n := os.Getpid(), listeners.Add(1)
	return fmt.Sprintf("%s127.%d.%d.%d:0", tr.origin, 1+pid>>8%254, pid&0xff, 1+n%254)
}

// eachTransport runs f over every transport.
func eachTransport(t *testing.T, f func(t *testing.T, tr transport)) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			f(t, tr)
		})
	}
}

// eachCostly is each for tests that compute much and are much the same over any transport: with the
// race detector one is enough.
func eachCostly(t *testing.T, f func(t *testing.T, tr transport)) {
	if raceflag.Enabled && !long.On {
		t.Run(transports[0].name, func(t *testing.T) { f(t, transports[0]) })
		return
	}
	eachTransport(t, f)
}

// shortTimeouts returns a configuration that detects the death of a peer soon. The end of a
// connection has to reveal it where there are connections, not silence.
func (tr transport) shortTimeouts() hg.Config {
	if tr.connected {
		return hg.Config{NA: na.Config{PeerTimeout: time.Hour}}
	}
	return hg.Config{NA: na.Config{PeerTimeout: time.Second}}
}

// startTarget starts a child that listens over tr, at addr unless that is empty.
func (tr transport) startTarget(t *testing.T, addr string) *process {
	t.Helper()
	if addr == "" {
		addr = tr.listenAddr()
	}
	return startRole(t, "target", listenEnv+"="+addr)
}

// newOrigin opens an origin whose handles call p.
func (tr transport) newOrigin(t *testing.T, p *process, cfg hg.Config) *origin {
	t.Helper()
	o := openAt(t, tr.origin, cfg, nil)
	o.connect(p)
	return o
}

// startPair starts a target and opens an origin that is connected to it, with a bystander.
func (tr transport) startPair(t *testing.T, cfg hg.Config) (*process, *origin) {
	t.Helper()
	p := tr.startTarget(t, "")
	o := openAt(t, tr.origin, cfg, nil)
	o.connect(p)
	h := o.newHandle("echo")
	defer h.Close()
	require.NoError(t, o.call(h, "hello"))
	o.watch(tr)
	return p, o
}

// A bystander is another child, which is called now and then while something happens to the others.
// It must not notice.
type bystander struct {
	o       *origin
	h       *hg.Handle
	flying  bool
	last    time.Time
	calls   int
	failed  error
	longest time.Duration
}

// watch makes o call a bystander until the test ends, and fails the test if one of the calls fails.
func (o *origin) watch(tr transport) {
	o.t.Helper()
	peer := o.peer
	o.connect(tr.startTarget(o.t, ""))
	b := &bystander{o: o, h: o.newHandle("echo")}
	o.peer, o.by = peer, b
	o.t.Cleanup(func() {
		o.driveUntil(func() bool { return !b.flying && b.calls > 0 })
		o.by = nil
		b.h.Close()
		o.t.Logf("bystander: %d calls, longest %v", b.calls, b.longest)
		require.NoError(o.t, b.failed, "the bystander felt it")
	})
}

// call calls the bystander, if it is time.
func (b *bystander) call() {
	if b == nil || b.flying || time.Since(b.last) < 5*time.Millisecond {
		return
	}
	b.flying, b.last = true, time.Now()
	if err := b.h.ForwardRaw([]byte("all well?"), func(_ *hg.Handle, err error) {
		b.flying = false
		b.calls++
		b.longest = max(b.longest, time.Since(b.last))
		if b.failed == nil {
			b.failed = err
		}
	}); err != nil {
		b.o.t.Error(err)
	}
}
