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

// A Perf measures calls and transfers to one target.
//
// The API determines how calls are made:
//
//   - callback: one goroutine drives all handles, and each callback forwards its handle again.
//   - sync: each handle has a goroutine, which calls CallRaw repeatedly.
//   - typed: as sync, but with the Call method of a typed method.
//
// For a bulk transfer, a call is made whose handler pushes data to this process's memory or pulls data from it.
type Perf struct {
	API      string // API with which calls are made: callback, sync or typed
	Size     int    // size of the input and output of a call, in bytes
	Inflight []int
	Bulk     int64         // size of a transfer, in bytes
	Alloc    bool          // use bulk.Alloc for memory that the target pulls, and make each call lend Bulk bytes of such memory, which its handler reads
	Time     time.Duration // duration of each measurement
	Pause    time.Duration // pause after each call

	// Step, if not nil, is called before each measurement. The parameter done is the number of completed measurements,
	// all is their total number, and what describes the next measurement.
	Step func(done, all int, what string)

	stopped atomic.Bool

	hctx *hg.Context
	node *qs.Node // for --api typed
	to   qs.Peer  // for --api typed
	peer na.Addr
	lent []byte // allocated by bulk.Alloc
	key  []byte // encoded handle of lent, preceded by its length
	call hg.ID  // RPC that calls use: rpcEcho, rpcLook, rpcTake or rpcGive
	give bool   // call is rpcGive
	take bool   // call is rpcTake, and typed calls are of typedTake
	move hg.ID
}

// A Result holds measurements. Benchmarks of other systems can print the same JSON fields for comparison.
type Result struct {
	Peer string             `json:"peer"`
	P50  float64            `json:"lat_p50_us"`
	P99  float64            `json:"lat_p99_us"`
	Rate map[string]float64 `json:"rate_per_s"`
	Bulk float64            `json:"bulk_mib_per_s"`
}

// A CoresResult is a Result with the GOMAXPROCS setting of the origin and the target.
type CoresResult struct {
	Cores int `json:"gomaxprocs"`
	Result
}

// Open opens a class at the address own and calls the target at addr once. It returns an error if the target does not
// echo the input unchanged.
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

// lend allocates memory that each call lends to the target.
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

// By returns the name of the transport over which the target is connected.
func (p *Perf) By() string {
	for _, s := range p.hctx.NA().Peers() {
		return s.Transport
	}
	return p.peer.Scheme()
}

// OfTake makes subsequent calls use an RPC that has no output, instead of the echo.
func (p *Perf) OfTake() (err error) {
	p.take = true
	p.call, err = p.hctx.Class().Register(rpcTake, nil)
	return err
}

// OfGive makes subsequent calls use an RPC that has no input other than the requested size of its output, instead of
// the echo. It makes one call to verify an output of p.Size bytes.
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
		err = fmt.Errorf("the target returned %d bytes that differ from the %d requested", len(out), p.Size)
	}
	return err
}

// inputOf returns the input for calls that measure the given size in a table.
func (p *Perf) inputOf(size int) []byte {
	if p.give {
		return giveRequest(size)
	}
	return Pattern(size)
}

// Close closes the class and releases its resources.
func (p *Perf) Close() { _ = p.hctx.Class().Close() }

// ErrStopped is returned by a measurement that was ended by Stop.
var ErrStopped = errors.New("stopped before the last measurement")

// Stop ends the current measurement, whose figures are discarded, and makes subsequent measurements fail with
// ErrStopped. It is safe for concurrent use.
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

// goesOn reports whether a measurement that is to run until end should continue.
func (p *Perf) goesOn(end time.Time) bool { return !p.stopped.Load() && time.Now().Before(end) }

// ended returns the error of a completed measurement. If err is nil and Stop has been called, the error is ErrStopped.
func (p *Perf) ended(err error) error {
	if err == nil && p.stopped.Load() {
		return ErrStopped
	}
	return err
}

// All makes all measurements. If it returns an error, the Result contains the completed ones.
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

// Percentile returns the q-th percentile of times, which must be sorted, in microseconds.
func Percentile(sorted []time.Duration, q int) float64 {
	return float64(sorted[len(sorted)*q/100]) / 1e3
}
