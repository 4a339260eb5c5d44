//go:build unix

package proctest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A worker calls echo again and again and counts.
type worker struct {
	o      *origin
	ended  int
	failed map[na.Code]int
	over   bool
	active int
}

// startWorker starts calls to the peer of o with n handles.
func (o *origin) startWorker(n int) *worker {
	o.t.Helper()
	w := &worker{o: o, failed: map[na.Code]int{}}
	for range n {
		w.active++
		w.forwardNext(o.newHandle("echo"))
	}
	return w
}

func (w *worker) forwardNext(h *hg.Handle) {
	if err := h.ForwardRaw([]byte("work"), func(h *hg.Handle, err error) {
		w.ended++
		if err != nil {
			w.failed[na.CodeOf(err)]++
		}
		if w.over {
			w.active--
			h.Close()
			return
		}
		w.forwardNext(h)
	}); err != nil {
		w.o.t.Error(err)
	}
}

// stop ends the calls.
func (w *worker) stop() {
	w.o.t.Helper()
	w.over = true
	w.o.driveUntil(func() bool { return w.active == 0 })
}

// TestShortFreeze checks a target that stops for a second (F08): no peer is reported lost, and no
// call fails.
func TestShortFreeze(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		p, o := tr.startPair(t, hg.Config{})
		w := o.startWorker(8)
		o.driveUntil(func() bool { return w.ended > 100 })
		p.stop()
		o.drive(time.Second)
		p.signal(syscall.SIGCONT)
		ended := w.ended
		o.driveUntil(func() bool { return w.ended > ended+100 })
		w.stop()
		require.Empty(t, w.failed)
		require.Zero(t, o.hctx.Stats().NA.PeersLost)
	})
}

const shortest = 1500 * time.Millisecond // a PeerTimeout that a busy machine can keep

// TestLongFreeze checks a target that stops for longer than PeerTimeout (F09): pending calls to it
// end with ErrPeerLost in time. When it continues, its late frames are dropped, and a new session
// is used.
func TestLongFreeze(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		p, o := tr.startPair(t, hg.Config{NA: na.Config{PeerTimeout: shortest}})
		h := o.newHandle("hold")
		defer h.Close()
		old := o.forward(h, nil)
		o.driveUntil(func() bool { return true })
		require.Equal(t, "began", p.readLine())
		p.stop()
		begun := time.Now()
		o.driveUntil(func() bool { return old.ended > 0 })
		took := old.at.Sub(begun)
		t.Logf("SIGSTOP to callback: %v, PeerTimeout is %v", took, shortest)
		require.ErrorIs(t, old.err, hg.ErrPeerLost)
		require.Greater(t, took, shortest*8/10)
		require.Less(t, took, shortest+10*time.Second)

		now := o.forward(h, nil) // the same handle, and the zombie owes an answer to its last call
		p.signal(syscall.SIGCONT)
		require.Equal(t, "began", o.waitForNext(p))
		release := o.newHandle("release")
		defer release.Close()
		require.Zero(t, now.ended, "it was answered with what belongs to another call")
		require.NoError(t, o.call(release, nil))
		o.driveUntil(func() bool { return now.ended > 0 })
		require.NoError(t, now.err)
		require.Equal(t, 1, old.ended)
		require.EqualValues(t, 1, o.hctx.Stats().NA.PeersLost)
	})
}

// waitForNext returns the next line of a child, and drives this side until then.
func (o *origin) waitForNext(p *process) string {
	o.t.Helper()
	lines := make(chan string, 1)
	go func() {
		line, _ := p.out.ReadString('\n')
		lines <- line
	}()
	var line string
	o.driveUntil(func() bool {
		select {
		case line = <-lines:
			return true
		default:
			return false
		}
	})
	return line[:max(len(line)-1, 0)]
}

func init() { roles["worker"] = workerChild }

// workerReport is the output of a worker child at its end.
type workerReport struct {
	Ended, Failed int
	Held          string
	Lost          int64
}

// workerChild calls hold once, and echo now and then, until its standard input ends; then it says
// what became of it. Most of the time the peer has nothing to say.
func workerChild() error {
	peer, err := na.ParseAddr(os.Getenv(peerEnv))
	if err != nil {
		return err
	}
	cls, err := hg.Open(peer.Scheme()+"://", hg.Config{NA: na.Config{PeerTimeout: shortest}})
	if err != nil {
		return err
	}
	hctx, err := cls.NewContext()
	if err != nil {
		return err
	}
	var c workerReport
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
		hctx.Wake()
	}()
	var hs [2]*hg.Handle
	for i, name := range []string{"echo", "hold"} {
		if _, err := cls.Register(name, nil); err != nil {
			return err
		}
		if hs[i], err = hctx.Create(peer, hg.HashName(name)); err != nil {
			return err
		}
	}
	if err := hs[1].Forward(nil, func(_ *hg.Handle, err error) { c.Held = fmt.Sprint(err) }); err != nil {
		return err
	}
	var last time.Time
	flying := false
	ended := func(_ *hg.Handle, err error) {
		c.Ended++
		if err != nil {
			c.Failed++
		}
		last, flying = time.Now(), false
	}
	fmt.Println("ready")
	for {
		select {
		case <-over:
			c.Lost = hctx.Stats().NA.PeersLost
			return json.NewEncoder(os.Stdout).Encode(c)
		default:
		}
		if !flying && time.Since(last) > shortest/4 {
			flying = true
			if err := hs[0].ForwardRaw([]byte("work"), ended); err != nil {
				return err
			}
		}
		hctx.Trigger(0)
		_ = hctx.Progress(10 * time.Millisecond)
	}
}

// TestOwnFreeze checks a process that is stopped for longer than its PeerTimeout, with a call in
// flight (F10): when it continues it does not give up its healthy peer, although by its clock no
// frame has arrived for long.
func TestOwnFreeze(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		served := 0
		var held hg.Request
		o := openAt(t, tr.listenAddr(), hg.Config{}, map[string]hg.Handler{
			"echo": func(h hg.Request) error { served++; return handleEcho(h) },
			"hold": func(h hg.Request) error { held = h; return h.Detach() },
		})
		o.watch(tr)
		p := startRole(t, "worker", peerEnv+"="+o.cls.Addr().String())
		goesOn := func() {
			seen := served
			o.driveUntil(func() bool { return served > seen && held != (hg.Request{}) })
		}
		for i := range time.Duration(long.Or(1, 2)) {
			goesOn()
			o.drive(shortest/16 + i*shortest/8) // the answer has arrived, and some of these times no other sign of life
			p.stop()
			o.drive(shortest * 6 / 5)
			p.signal(syscall.SIGCONT)
		}
		goesOn()
		goesOn()
		require.NoError(t, held.RespondRaw(nil, nil))
		goesOn()
		goesOn() // the answer was before this
		require.NoError(t, p.in.Close())
		var c workerReport
		require.NoError(t, json.Unmarshal([]byte(o.waitForNext(p)), &c))
		t.Logf("%+v", c)
		require.Zero(t, c.Failed)
		require.Zero(t, c.Lost)
		require.Equal(t, "<nil>", c.Held)
	})
}

// TestStarvedTarget checks a target that gets a twentieth of a processor (F15), by SIGSTOP and
// SIGCONT, which needs no privilege: it is slow, and is not reported lost.
func TestStarvedTarget(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		const cycle, share, cycles = 100 * time.Millisecond, 20, 17 // longer than PeerTimeout
		p, o := tr.startPair(t, hg.Config{NA: na.Config{PeerTimeout: shortest}})
		w := o.startWorker(4)
		for range cycles {
			p.stop()
			o.drive(cycle - cycle/share)
			p.signal(syscall.SIGCONT)
			o.drive(cycle / share)
		}
		w.stop()
		t.Logf("%d calls in %v", w.ended, cycles*cycle)
		require.Empty(t, w.failed)
		require.Zero(t, o.hctx.Stats().NA.PeersLost)
		require.Positive(t, w.ended)
	})
}
