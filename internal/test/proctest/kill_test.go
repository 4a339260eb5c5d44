//go:build unix

package proctest

import (
	"flag"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestKilledTarget checks a target that is killed before it reads the request (F01), while its
// handler runs (F02), and after its answer has left (F03). The call ends once, not by a timeout
// where there is a connection, and its handle calls another target at once.
func TestKilledTarget(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, rpc string
		until     func(p *process, begin func())
		want      error
	}{
		{"unread", "echo", func(p *process, begin func()) { p.stop(); begin() }, hg.ErrPeerLost},
		{"in the handler", "hold", func(p *process, begin func()) { begin(); require.Equal(p.t, "began", p.readLine()) }, hg.ErrPeerLost},
		{"answered", "answer", func(p *process, begin func()) { begin(); require.Equal(p.t, "answered", p.readLine()) }, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, tr transport) {
				p, o := tr.startPair(t, tr.shortTimeouts())
				lost := 0
				o.hctx.OnFault(func(na.Addr, error) { lost++ })
				h := o.newHandle(row.rpc)
				defer h.Close()
				var c *outcome
				row.until(p, func() { c = o.forward(h, "x") })
				begun := time.Now()
				p.kill()
				o.driveUntil(func() bool { return c.ended == 1 })
				if row.want == nil && !tr.connected { // nothing is open: the next call finds out
					require.Zero(t, lost)
					require.ErrorIs(t, o.call(h, "next"), hg.ErrPeerLost)
				}
				o.driveUntil(func() bool { return lost == 1 })
				t.Logf("SIGKILL to callback: %v", c.at.Sub(begun))
				if row.want == nil {
					require.NoError(t, c.err)
				} else {
					require.ErrorIs(t, c.err, row.want)
					require.Equal(t, na.MaybeRan, hg.FateOf(c.err))
				}
				err := o.call(h, "again")
				require.ErrorIs(t, err, hg.ErrUnreachable)
				require.Equal(t, na.NotRun, hg.FateOf(err))
				require.NoError(t, h.Reset(o.by.h.Peer(), hg.HashName("echo")))
				require.NoError(t, o.call(h, "somebody else"))
				require.Equal(t, 1, c.ended)
			})
		})
	}
}

// The environment of a child that is an origin: the address that it calls, and the input.
const (
	peerEnv = "QUICKSILVER_TEST_PEER"
	jobEnv  = "QUICKSILVER_TEST_JOB"
	sizeEnv = "QUICKSILVER_TEST_SIZE"
)

func init() { roles["origin"] = originChild }

// originChild is an origin that makes one call and waits for its end for ever.
func originChild() error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	peer, err := na.ParseAddr(os.Getenv(peerEnv))
	if err != nil {
		return err
	}
	cls, err := hg.Open(peer.Scheme()+"://", hg.Config{})
	if err != nil {
		return err
	}
	hctx, err := cls.NewContext()
	if err != nil {
		return err
	}
	job := os.Getenv(jobEnv)
	if _, err := cls.Register(job, nil); err != nil {
		return err
	}
	var in any
	if job == "pull" {
		var args pullArgs
		if _, err := fmt.Sscan(os.Getenv(sizeEnv), &args.Size, &args.Point); err != nil {
			return err
		}
		if args.Region, err = bulk.Create(hctx, bulk.Options{Access: bulk.ReadOnly}, make([]byte, args.Size)); err != nil {
			return err
		}
		in = &args
	}
	h, err := hctx.Create(peer, hg.HashName(job))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if err := h.Forward(in, func(_ *hg.Handle, err error) { fmt.Println(err) }); err != nil {
		return err
	}
	return serve(hctx)
}

// TestKilledOrigin checks that an origin that is killed while its request is handled (F04): an
// answer before the target detects it has left or not, one after that ends with ErrPeerLost or is
// refused, and nothing of that peer is left, also of an answer so large that it is lent.
func TestKilledOrigin(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		for _, size := range []int{10, 8 << 20} {
			for _, early := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d bytes, early %v", size, early), func(t *testing.T) {
					var held hg.Request
					o := openAt(t, tr.listenAddr(), tr.shortTimeouts(), map[string]hg.Handler{
						"hold": func(h hg.Request) error { held = h; return h.Detach() },
					})
					o.watch(tr)
					o.driveUntil(func() bool { return o.by.calls > 0 })
					before := o.hctx.Stats().NA
					p := startRole(t, "origin", peerEnv+"="+o.cls.Addr().String(), jobEnv+"=hold")
					o.driveUntil(func() bool { return held != (hg.Request{}) })
					p.stop()
					ended := 0
					var got error
					respond := func() error {
						return held.RespondRaw(make([]byte, size), func(_ hg.Request, err error) { ended++; got = err })
					}
					if early {
						require.NoError(t, respond())
					}
					begun := time.Now()
					p.kill()
					o.driveUntil(func() bool { return o.hctx.Stats().NA.PeersLost == 1 })
					t.Logf("SIGKILL to loss: %v", time.Since(begun))
					require.Error(t, held.Context().Err())
					var refused error
					if !early {
						refused = respond()
					}
					if refused != nil { // Trigger has reported the loss: the request has ended
						require.ErrorIs(t, refused, na.ErrAnswered)
					} else {
						o.driveUntil(func() bool { return ended == 1 })
						if !early {
							require.ErrorIs(t, got, hg.ErrPeerLost)
						}
						require.Equal(t, 1, ended)
					}
					o.driveUntil(func() bool { return o.hctx.Stats().NA.Leases == 0 })
					after := o.hctx.Stats().NA
					require.Equal(t, before.Reserved, after.Reserved, "its envelopes are given back")
					require.Equal(t, before.Peers, after.Peers)
					require.Zero(t, after.Envelopes)
					require.Equal(t, before.Regions, after.Regions)
				})
			}
		}
	})
}

var moved = flag.Int64("proctest.size", 8<<20, "bytes of the transfers in the middle of which somebody is killed")

// eachPoint runs f with a transfer and where in it something is to happen.
func eachPoint(t *testing.T, f func(t *testing.T, tr transport, size, point int64)) {
	eachTransport(t, func(t *testing.T, tr transport) {
		for _, percent := range []int64{50, 99} {
			t.Run(fmt.Sprintf("%d%%", percent), func(t *testing.T) { f(t, tr, *moved, *moved/100*percent) })
		}
	})
}

// TestKilledPuller checks a puller that is killed in the middle (F05) and near the end: the call
// ends with ErrPeerLost, and the region is released at once.
func TestKilledPuller(t *testing.T) {
	t.Parallel()
	eachPoint(t, func(t *testing.T, tr transport, size, point int64) {
		p, o := tr.startPair(t, tr.shortTimeouts())
		region, err := bulk.Create(o.hctx, bulk.Options{Access: bulk.ReadOnly}, make([]byte, size))
		require.NoError(t, err)
		h := o.newHandle("pull")
		defer h.Close()
		c := o.forward(h, &pullArgs{region, size, point})
		stop := make(chan struct{})
		go func() { // it stops itself, while this process has to serve it
			defer close(stop)
			p.waitStopped()
		}()
		o.driveUntil(func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		})
		require.Zero(t, c.ended)
		begun := time.Now()
		p.kill()
		o.driveUntil(func() bool { return c.ended == 1 })
		t.Logf("SIGKILL to callback: %v", c.at.Sub(begun))
		require.ErrorIs(t, c.err, hg.ErrPeerLost)
		freed := false
		require.NoError(t, region.CloseFunc(func(err error) { freed = err == nil }))
		o.driveUntil(func() bool { return freed })
	})
}

// TestKilledOwner checks an owner of a region that is killed in the middle of a pull (F06) and near
// its end (F64): the pull ends with ErrPeerLost, reports the bytes that have arrived, and the local
// memory is released.
func TestKilledOwner(t *testing.T) {
	t.Parallel()
	eachPoint(t, func(t *testing.T, tr transport, size, point int64) {
		var p *process
		var begun time.Time
		var ended *bulk.Op
		var got error
		o := openAt(t, tr.listenAddr(), tr.shortTimeouts(), map[string]hg.Handler{
			"pull": func(h hg.Request) error {
				var in pullArgs
				if err := h.Input(&in); err != nil {
					return err
				}
				_ = h.Detach()
				return handlePull(h, &in, func(*bulk.Op) { begun = time.Now(); p.kill() }, func(op *bulk.Op, err error) { ended, got = op, err })
			},
		})
		o.watch(tr)
		p = startRole(t, "origin", peerEnv+"="+o.cls.Addr().String(), jobEnv+"=pull", fmt.Sprintf("%s=%d %d", sizeEnv, size, point))
		o.driveUntil(func() bool { return ended != nil })
		t.Logf("SIGKILL to callback: %v, %d of %d bytes", time.Since(begun), ended.Moved(), size)
		require.ErrorIs(t, got, hg.ErrPeerLost)
		require.GreaterOrEqual(t, ended.Moved(), point)
		require.Less(t, ended.Moved(), size)
		o.driveUntil(func() bool { return o.hctx.Stats().NA.Regions == 0 })
	})
}
