package ledger

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A postCase is one call between two nodes of which a post fails: every one, one world for each.
//
//	origin: Forward ──────────► target: handler, pulls or pushes ─► Respond ─► origin: callback
//	 posts 1, 2, …               posts 1, 2, …                                 then a call that succeeds, and nothing is left
type postCase struct {
	w              *sim.World
	origin, target int // longest messages
	input, output  int
	dir            bulk.Dir
	move           int  // bytes that are moved; 0: none
	all            bool // every post of the origin fails while the call is in flight

	targetProgram
	ends, runs int
	err        error
	done       bool
}

func (p *postCase) open(name string, eager int) (*hg.Class, *hg.Context) {
	return openNode(p.w.Node(name).Plugin(), name, eager, p.work)
}

// run makes the call while the n-th post at a node fails, and returns how many posts that node has
// made.
func (p *postCase) run(seed uint64, at string, n int, err error) int {
	p.w = sim.NewWorld(sim.Config{Seed: seed})
	defer p.w.Close()
	p.w.Node(at).FailPost(n, err)
	p.w.Go("target", func() {
		cls, hctx := p.open("target", p.target)
		for !p.done {
			hctx.Trigger(0)
			_ = hctx.Progress(10 * time.Millisecond)
		}
		endNode(cls, hctx, p.fail)
	})
	p.w.Go("origin", func() {
		defer func() { p.done = true }()
		cls, hctx := p.open("origin", p.origin)
		if p.all {
			p.w.SetFaults(sim.Faults{Again: 1})
		}
		p.call(hctx)
		p.w.SetFaults(sim.Faults{})
		first := p.err
		for range 3 { // a peer that could not be dialled is left alone for a while
			p.w.Sleep(time.Second)
			if p.call(hctx); p.err == nil {
				break
			}
		}
		if p.err != nil {
			p.fail("a later call ended with %v, the first one with %v", p.err, first)
		}
		p.err = first
		endNode(cls, hctx, p.fail)
	})
	if err := p.w.Run(time.Minute); err != nil {
		p.fail("%v", err)
	}
	p.audit()
	return p.w.Node(at).Posts()
}

// call makes one call and waits for its end.
func (p *postCase) call(hctx *hg.Context) {
	p.ends, p.runs, p.err = 0, 0, nil
	in := bytes.Repeat([]byte{7}, p.input)
	var region *bulk.Handle
	memory := bytes.Repeat([]byte{1}, p.move)
	if p.move > 0 {
		access := bulk.ReadOnly
		if p.dir == bulk.Push {
			access = bulk.WriteOnly
		}
		var err error
		if region, err = bulk.Create(hctx, bulk.Options{Access: access}, memory); err != nil {
			p.err = err
			return
		}
		in, _ = region.MarshalBinary()
	}
	h, err := hctx.Create(na.MakeAddr("sim://target", 0), hg.HashName("work"))
	if err != nil {
		panic(err)
	}
	defer h.Close()
	if p.err = h.Forward(in, func(h *hg.Handle, err error) {
		p.ends++
		p.err = err
		if err != nil {
			return
		}
		if out, err := h.OutputRaw(); err != nil || !bytes.Equal(out, bytes.Repeat([]byte{9}, p.output)) {
			p.fail("output of %d bytes, %v", len(out), err)
		}
	}); p.err == nil {
		driveUntil(hctx, 30*time.Second, func() bool { return p.ends > 0 })
		if p.ends != 1 {
			p.fail("%d callbacks", p.ends)
		}
	}
	driveUntil(hctx, time.Millisecond, nil) // nothing arrives twice
	switch fate := hg.FateOf(p.err); {
	case p.ends > 1:
		p.fail("%d callbacks", p.ends)
	case p.err == nil && p.runs != 1, p.runs > 1, p.err != nil && fate == na.NotRun && p.runs > 0, p.err != nil && fate == na.Ran && p.runs == 0:
		p.fail("the handler ran %d times, the call ended with %v", p.runs, p.err)
	case p.err == nil && p.dir == bulk.Push && !bytes.Equal(memory, bytes.Repeat([]byte{2}, p.move)):
		p.fail("memory differs after a push")
	}
	if region != nil {
		closed := false
		if err := region.CloseFunc(func(error) { closed = true }); err != nil {
			p.fail("close of the region: %v", err)
		}
		driveUntil(hctx, time.Second, func() bool { return closed })
		if !closed {
			p.fail("the region is not closed")
		}
	}
}

// work is the handler.
func (p *postCase) work(h hg.Request) error {
	p.runs++
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	out := bytes.Repeat([]byte{9}, p.output)
	if p.move == 0 {
		if len(in) != p.input {
			p.fail("input of %d bytes", len(in))
		}
		return p.answer(func(cb hg.RespondFunc) error { return h.RespondRaw(out, cb) })
	}
	remote := new(bulk.Handle)
	if err := remote.UnmarshalBinary(in); err != nil {
		return err
	}
	return p.moveAndAnswer(h, remote, out)
}

// everyPost runs a call once for each post that it makes at either side.
func everyPost(t *testing.T, c postCase) {
	for _, at := range []string{"origin", "target"} {
		for _, err := range []error{na.ErrAgain, na.ErrNoMemory} {
			failed := 0
			for n, posts := 1, 1; n <= posts; n++ {
				require.Less(t, n, 200)
				p := c
				posts = p.run(1, at, n, err)
				require.NoError(t, p.failed, "post %d of %d at the %s fails with %v; the call ended with %v", n, posts, at, err, p.err)
				if p.err != nil {
					require.NotErrorIs(t, p.err, na.ErrMsgSize, "post %d at the %s fails with %v", n, at, err)
					failed++
				}
			}
			require.Positive(t, failed, "no failed post at the %s was noticed", at)
		}
	}
}

func TestPostsFail(t *testing.T) {
	everyPost(t, postCase{input: 10, output: 10})
}

// TestH3bPostsFail (H3b) checks that a body that does not fit a message is fetched from its owner,
// and the fetch may fail at its start, on either side.
func TestH3bPostsFail(t *testing.T) {
	t.Run("both larger", func(t *testing.T) { everyPost(t, postCase{input: 20 << 10, output: 30 << 10}) })
	t.Run("for the target only", func(t *testing.T) { everyPost(t, postCase{origin: 4096, target: 256, input: 2000, output: 100}) })
	t.Run("for the origin only", func(t *testing.T) { everyPost(t, postCase{origin: 256, target: 4096, input: 100, output: 2000}) })
}

// TestH16PostsFail (H16) checks that the k-th post of a transfer fails while those before it are in
// flight.
func TestH16PostsFail(t *testing.T) {
	t.Run("pull", func(t *testing.T) { everyPost(t, postCase{output: 10, dir: bulk.Pull, move: 5*4096 + 1}) })
	t.Run("push", func(t *testing.T) { everyPost(t, postCase{output: 10, dir: bulk.Push, move: 5*4096 + 1}) })
}

// TestH8PostAndDialFail (H8) checks that the call cannot be posted, or no dial succeeds, or
// neither: it ends once, and did not run.
func TestH8PostAndDialFail(t *testing.T) {
	const post1, dial, both = 1, 2, 0
	for _, n := range []int{post1, dial, both} {
		p := postCase{input: 10, output: 10, all: n == both}
		p.run(1, "origin", n, na.ErrNoMemory)
		require.NoError(t, p.failed, "post %d", n)
		want := errors.Is(p.err, na.ErrNoMemory) || errors.Is(p.err, na.ErrAgain)
		require.True(t, want || n == dial && errors.Is(p.err, na.ErrUnreachable), "post %d: %v", n, p.err)
		require.Equal(t, na.NotRun, hg.FateOf(p.err), "post %d", n)
	}
}
