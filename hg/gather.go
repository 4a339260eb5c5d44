package hg

import (
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// A gathering lets the answers of dispatched handlers leave together. The goroutine that has given a batch to Config.Dispatch
// waits until Run has returned for all of it, as long as they are quick, while what they send is held back; with nothing else to
// do it leaves its processor to them.
//
//	Trigger: cork ─► dispatch … dispatch ─► wait: all are home, or none comes for a moment ─► uncork: one write
//	                    └► Run ─► Respond: queued ─► home ─┘
//
// Batches that were waited for in vain, because the handlers take longer, cost the next ones their wait.
type gathering struct {
	loop.Batch
	c     *Context
	flush func()
	now   func() time.Duration
	busy  atomic.Bool   // a pass is under way
	pass  atomic.Uint32 // its number
	rest  int           // passes that go without; the pass under way has this,
	rests int           // and how many it was the last time
}

// maxRests bounds the passes that go without a wait after one in vain.
const maxRests = 31

func newGathering(c *Context) *gathering {
	return &gathering{Batch: loop.NewBatch(), c: c, flush: c.nctx.Flush, now: c.Now}
}

// begin begins a pass, if g is not nil. Of several at a time one waits.
func (g *gathering) begin() (p loop.Pass) {
	if g == nil {
		return p
	}
	p.Held = g.c.nctx.Queued() > 1 && g.c.nctx.Cork()
	if !g.busy.CompareAndSwap(false, true) {
		return p
	}
	if g.rest > 0 {
		g.rest--
		g.busy.Store(false)
		return p
	}
	g.Begin(1)
	p.Serial = max(g.pass.Add(1), 1)
	return p
}

// dispatched counts a request that is given to Config.Dispatch, and returns its pass.
func (g *gathering) dispatched() uint32 {
	if !g.under() {
		return 0
	}
	g.Add()
	return g.pass.Load()
}

// returned counts one that Run has returned for.
func (g *gathering) returned(pass uint32) {
	if g != nil && pass != 0 && pass == g.pass.Load() {
		g.Returned(g.flush)
	}
}

// under reports whether a pass is under way.
func (g *gathering) under() bool { return g != nil && g.busy.Load() }

// end ends it.
func (g *gathering) end(p loop.Pass) {
	if p.Serial != 0 {
		if g.Added(); g.Wait(g.now, g.flush, 1) {
			g.rests = 0
		} else {
			g.rests = min(2*g.rests+1, maxRests)
			g.rest = g.rests
		}
		g.busy.Store(false)
	}
	if p.Held {
		g.c.nctx.Uncork()
	}
}
