package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Perf is one run of measurements against one target.
//
//	callback: one goroutine, N handles; each callback forwards its handle again      Forward ─► Progress, Trigger ─► …
//	sync:     N goroutines, each with a handle, forward and wait                     CallRaw ─► …
//	typed:    the same with typed calls and handlers                                  Method.Call ─► …
//	bulk:     one call in flight; its handler pushes to, or pulls from, our memory
type Perf struct {
	API      string // callback, sync or typed
	Size     int    // size of a call's input and output, in bytes
	Inflight []int
	Bulk     int64         // size of a transfer, in bytes
	Alloc    bool          // pulled memory comes from bulk.Alloc, and each call lends that much memory for its handler to read
	Time     time.Duration // duration of each measurement
	Pause    time.Duration // pause between calls

	// Step, if not nil, is called before each measurement begins. The first argument is the number of completed
	// measurements, and the second is the total.
	Step func(done, all int, what string)

	stopped atomic.Bool

	hctx *hg.Context
	node *qs.Node // for --api typed
	to   qs.Peer  // for --api typed
	peer na.Addr
	lent []byte // allocated by bulk.Alloc
	key  []byte // encoded handle of lent
	call hg.ID  // RPC to call: rpcEcho, rpcLook, rpcTake or rpcGive
	give bool   // call is rpcGive
	move hg.ID
}

// A Result holds measurements in the fields that users' own benchmarks of other systems also print.
type Result struct {
	Peer string             `json:"peer"`
	P50  float64            `json:"lat_p50_us"`
	P99  float64            `json:"lat_p99_us"`
	Rate map[string]float64 `json:"rate_per_s"`
	Bulk float64            `json:"bulk_mib_per_s"`
}

// A CoresResult is a Result together with the GOMAXPROCS of both ends.
type CoresResult struct {
	Cores int `json:"gomaxprocs"`
	Result
}

// Open opens the origin at own and calls the target at addr once, to verify that it is a target and echoes its input
// unchanged.
func (p *Perf) Open(cfg hg.Config, own, addr string) (err error) {
	var class *hg.Class
	if p.API == "typed" {
		if p.node, err = qs.Open(own, qs.Config{HG: cfg}); err == nil {
			class, p.hctx = p.node.HG().Class(), p.node.HG()
			p.to, err = p.node.Peer(context.Background(), addr)
		}
	} else if class, err = hg.Open(own, cfg); err == nil {
		p.hctx, err = class.NewContext()
	}
	if err != nil {
		return err
	}
	if p.call, err = class.Register(rpcEcho, nil); err != nil {
		return err
	}
	if p.move, err = class.Register(rpcMove, nil); err != nil {
		return err
	}
	if p.peer, err = p.hctx.LookupWait(context.Background(), addr); err != nil {
		return err
	}
	if p.Alloc && p.Bulk > 0 {
		if err := p.lend(); err != nil {
			return err
		}
	}
	return p.checkEcho(p.Size)
}

// lend makes each call lend memory.
func (p *Perf) lend() (err error) {
	if p.lent, err = bulk.Alloc(int(p.Bulk)); err != nil {
		return err
	}
	fillPattern(p.lent)
	h, err := bulk.Create(p.hctx, bulk.Options{Access: bulk.ReadOnly, Eager: -1}, p.lent)
	if err != nil {
		return err
	}
	if p.key, err = h.AppendBinary([]byte{0}); err != nil {
		return err
	}
	p.key[0] = byte(len(p.key) - 1)
	p.call, err = p.hctx.Class().Register(rpcLook, nil)
	return err
}

// Peer returns the target's address.
func (p *Perf) Peer() na.Addr { return p.peer }

// By returns the transport used to reach the target.
func (p *Perf) By() string {
	for _, s := range p.hctx.NA().Peers() {
		return s.Transport
	}
	return p.peer.Scheme()
}

// OfTake directs calls to the RPC that returns no output, instead of the echo.
func (p *Perf) OfTake() (err error) {
	p.call, err = p.hctx.Class().Register(rpcTake, nil)
	return err
}

// OfGive directs calls to the RPC that takes no input and returns output of the configured size. It makes one call with
// p.Size to verify the output.
func (p *Perf) OfGive() (err error) {
	if p.call, err = p.hctx.Class().Register(rpcGive, nil); err != nil {
		return err
	}
	p.give = true
	c, err := p.newCall(p.inputOf(p.Size))
	if err != nil {
		return err
	}
	defer c.h.Close()
	if err := c.callOnce(); err != nil {
		return err
	}
	out, err := c.h.OutputRaw()
	if err == nil && (len(out) != p.Size || !isPattern(out)) {
		err = fmt.Errorf("the target gave %d bytes that are not the %d that it was asked for", len(out), p.Size)
	}
	return err
}

// inputOf returns the input of a table's calls for the given size.
func (p *Perf) inputOf(size int) []byte {
	if p.give {
		return giveRequest(size)
	}
	return Pattern(size)
}

// Close closes the class.
func (p *Perf) Close() { _ = p.hctx.Class().Close() }

// ErrStopped is returned by measurements that Stop has ended.
var ErrStopped = errors.New("stopped before the last measurement")

// Stop ends the current measurement and discards its figures; measurements after it are not made. It is safe for
// concurrent use.
func (p *Perf) Stop() {
	p.stopped.Store(true)
	if p.hctx != nil {
		p.hctx.Wake()
	}
}

func (p *Perf) reportStep(done, all int, what string) {
	if p.Step != nil {
		p.Step(done, all, what)
	}
}

// goesOn reports whether a measurement that ends at end should continue.
func (p *Perf) goesOn(end time.Time) bool { return !p.stopped.Load() && time.Now().Before(end) }

// ended returns the error of a measurement, which is ErrStopped if the measurement was stopped.
func (p *Perf) ended(err error) error {
	if err == nil && p.stopped.Load() {
		return ErrStopped
	}
	return err
}

// All makes all measurements. If it returns an error, the result contains the completed ones.
func (p *Perf) All() (r Result, err error) {
	in := append(slices.Clip(p.key), Pattern(p.Size)...)
	all := 1 + len(p.Inflight)
	if p.Bulk > 0 {
		all++
	}
	r.Rate = map[string]float64{}
	p.reportStep(0, all, "latency of calls")
	lat, err := p.measureLatencies(in)
	if err != nil {
		return r, err
	}
	r.P50, r.P99 = Percentile(lat, 50), Percentile(lat, 99)
	for i, n := range p.Inflight {
		p.reportStep(1+i, all, fmt.Sprintf("rate of calls, %d in flight", n))
		rate, err := p.measureRate(n, in)
		if err != nil {
			return r, err
		}
		r.Rate[strconv.Itoa(n)] = rate
	}
	if p.Bulk > 0 {
		p.reportStep(all-1, all, "throughput of bulk transfers")
		dir := push
		if p.Alloc {
			dir = pull
		}
		r.Bulk, err = p.measureBulkRate(dir, p.Bulk, 1)
	}
	return r, err
}

// Percentile returns the q-th percentile of sorted times, in microseconds.
func Percentile(sorted []time.Duration, q int) float64 {
	return float64(sorted[len(sorted)*q/100]) / 1e3
}
