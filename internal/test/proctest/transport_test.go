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

// listen is where a target listens: where the machine has them, at an IP address of its own. The port of a target that is
// killed is free, and a target of another test, or another package's, that listened at the same address could be given it
// while calls to the dead one have to fail.
func (tr transport) listen() string {
	switch {
	case tr.name == "sm":
		return "sm://*"
	case runtime.GOOS != "linux": // which alone has all of 127/8
		return tr.origin + "127.0.0.1:0"
	}
	pid, n := os.Getpid(), listeners.Add(1)
	return fmt.Sprintf("%s127.%d.%d.%d:0", tr.origin, 1+pid>>8%254, pid&0xff, 1+n%254)
}

// each runs f over every transport.
func each(t *testing.T, f func(t *testing.T, tr transport)) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			f(t, tr)
		})
	}
}

// eachCostly is each for tests that compute much and are much the same over any transport: with the race detector one is enough.
func eachCostly(t *testing.T, f func(t *testing.T, tr transport)) {
	if raceflag.Enabled && !long.On {
		t.Run(transports[0].name, func(t *testing.T) { f(t, transports[0]) })
		return
	}
	each(t, f)
}

// attentive is a configuration that notices the death of a peer soon. The end of a connection has to tell of it where there are
// connections, not silence.
func (tr transport) attentive() hg.Config {
	if tr.connected {
		return hg.Config{NA: na.Config{PeerTimeout: time.Hour}}
	}
	return hg.Config{NA: na.Config{PeerTimeout: time.Second}}
}

// target starts a child that listens over tr, at addr unless that is empty.
func (tr transport) target(t *testing.T, addr string) *process {
	t.Helper()
	if addr == "" {
		addr = tr.listen()
	}
	return startRole(t, "target", listenEnv+"="+addr)
}

// from opens an origin whose handles go to p.
func (tr transport) from(t *testing.T, p *process, cfg hg.Config) *origin {
	t.Helper()
	o := openAt(t, tr.origin, cfg, nil)
	o.meet(p)
	return o
}

// meet starts a target and opens an origin that has met it. A bystander is there too.
func (tr transport) meet(t *testing.T, cfg hg.Config) (*process, *origin) {
	t.Helper()
	p := tr.target(t, "")
	o := openAt(t, tr.origin, cfg, nil)
	o.meet(p)
	h := o.handle("echo")
	defer h.Close()
	require.NoError(t, o.call(h, "hello"))
	o.watch(tr)
	return p, o
}

// A bystander is another child, which is called now and then while something happens to the others. It must not notice.
type bystander struct {
	o      *origin
	h      *hg.Handle
	flying bool
	last   time.Time
	calls  int
	failed error
	most   time.Duration
}

// watch has o call a bystander until the test ends, which fails if one of the calls does.
func (o *origin) watch(tr transport) {
	o.t.Helper()
	peer := o.peer
	o.meet(tr.target(o.t, ""))
	b := &bystander{o: o, h: o.handle("echo")}
	o.peer, o.by = peer, b
	o.t.Cleanup(func() {
		o.until(func() bool { return !b.flying && b.calls > 0 })
		o.by = nil
		b.h.Close()
		o.t.Logf("bystander: %d calls, longest %v", b.calls, b.most)
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
		b.most = max(b.most, time.Since(b.last))
		if b.failed == nil {
			b.failed = err
		}
	}); err != nil {
		b.o.t.Error(err)
	}
}
