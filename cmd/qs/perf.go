package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// perf is one run against one target.
//
//	callback: one goroutine, N handles; each callback forwards its handle again      Forward ─► Progress, Trigger ─► …
//	sync:     N goroutines, each with a handle, forwards and waits                   Forward ─► request.Wait ─► …
//	bulk:     one call in flight; its handler pushes to, or pulls from, our memory
type perf struct {
	api      string
	size     int
	inflight []int
	bulk     int64
	time     time.Duration
	pause    time.Duration

	hctx *hg.Context
	peer na.Addr
	echo hg.ID
	move hg.ID
	reqs *request.Class
}

// A result has the fields that users' own measurements of other systems print, too.
type result struct {
	Peer string             `json:"peer"`
	P50  float64            `json:"lat_p50_us"`
	P99  float64            `json:"lat_p99_us"`
	Rate map[string]float64 `json:"rate_per_s"`
	Bulk float64            `json:"bulk_MiB_s"`
}

func runPerf(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("perf [flags]", flag.ContinueOnError)
	var n network
	p := &perf{}
	n.flags(fs)
	fs.StringVar(&n.transport, "transport", "tcp", "`scheme` of the target that is started")
	fs.StringVar(&p.api, "api", "callback", "callback: one goroutine, many handles; sync: a goroutine for each call, which waits")
	fs.IntVar(&p.size, "size", 64, "`bytes` of a call's input and output")
	fs.Int64Var(&p.bulk, "bulk", 16<<20, "`bytes` of a bulk transfer; 0 for none")
	fs.DurationVar(&p.time, "time", 2*time.Second, "`time` of each measurement")
	fs.DurationVar(&p.pause, "pause", 0, "`time` to wait between calls")
	inflight := fs.String("inflight", "1,16,64", "calls in flight, a list")
	target := fs.String("target", "", "`address` of a running qs serve; without it one is started")
	op := fs.String("op", "", "rate, lat, read (the target pushes) or write (it pulls): a table over sizes; mixed: calls beside bulk; idle: what silent peers cost")
	peers := fs.Int("peers", 1000, "how many peers, with -op idle")
	withFloor := fs.Bool("floor", false, "also measure the least that a call could cost: a bare echo over one tcp connection")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
	switch {
	case p.api != "callback" && p.api != "sync":
		return usageError{fmt.Sprintf("-api is %q, want callback or sync", p.api)}
	case *op != "" && *op != "mixed" && *op != "idle" && ladders[*op] == nil:
		return usageError{fmt.Sprintf("-op is %q, want rate, lat, read, write, mixed or idle", *op)}
	case p.size < 0 || p.bulk < 0 || p.time <= 0 || p.pause < 0 || p.bulk > maxMove:
		return usageError{"a size or time is negative, or -bulk larger than 1 GiB"}
	}
	for _, s := range strings.Split(*inflight, ",") {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > 4096 {
			return usageError{fmt.Sprintf("-inflight has %q, want numbers from 1 to 4096 with commas between", s)}
		}
		p.inflight = append(p.inflight, v)
	}
	if *op == "idle" {
		return idle(&n, *peers, p.time, *asJSON, out)
	}
	addr := *target
	if addr == "" {
		c, err := startChild(&n, n.transport+"://127.0.0.1:0")
		if err != nil {
			return err
		}
		defer c.stop()
		addr = c.addr
	}
	if err := p.open(&n, addr); err != nil {
		return err
	}
	defer p.close()
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	n.burden()
	switch *op {
	case "":
	case "mixed":
		return p.mixed(*asJSON, out)
	default:
		return p.ladder(*op, *asJSON, out)
	}
	r, err := p.all()
	if err != nil {
		return err
	}
	r.Peer = "quicksilver-" + p.peer.Scheme() + "-" + p.api
	rs := []result{r}
	if *withFloor {
		floor, err := p.floor(n.spin)
		if err != nil {
			return err
		}
		rs = append(rs, floor)
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(rs)
	}
	p.print(out, rs)
	return nil
}

func (p *perf) print(out io.Writer, rs []result) {
	fmt.Fprintf(out, "# %s, %d cores, GOMAXPROCS %d, %d B calls, %d B bulk\n", runtime.Version(), runtime.NumCPU(),
		runtime.GOMAXPROCS(0), p.size, p.bulk)
	fmt.Fprintf(out, "%-26s %9s %9s", "peer", "p50 us", "p99 us")
	for _, n := range p.inflight {
		fmt.Fprintf(out, " %10s", "rate@"+strconv.Itoa(n))
	}
	fmt.Fprintf(out, " %12s\n", "bulk MiB/s")
	for _, r := range rs {
		fmt.Fprintf(out, "%-26s %9.1f %9.1f", r.Peer, r.P50, r.P99)
		for _, n := range p.inflight {
			fmt.Fprintf(out, " %10s", figure(r.Rate[strconv.Itoa(n)]))
		}
		fmt.Fprintf(out, " %12s\n", figure(r.Bulk))
	}
}

// figure prints a number, or a dash for what was not measured.
func figure(v float64) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// open makes the origin and calls the target once, to see that it is one and that bytes come back as they went.
func (p *perf) open(n *network, addr string) error {
	scheme, _, _ := strings.Cut(addr, ":")
	class, err := hg.Open(scheme+"://", n.config())
	if err != nil {
		return err
	}
	if p.echo, err = class.Register(rpcEcho, nil); err != nil {
		return err
	}
	if p.move, err = class.Register(rpcMove, nil); err != nil {
		return err
	}
	if p.hctx, err = class.NewContext(); err != nil {
		return err
	}
	p.reqs = request.NewClass(p.hctx)
	if p.peer, err = na.ParseAddr(addr); err != nil {
		return err
	}
	return p.checkEcho(p.size)
}

func (p *perf) close() { _ = p.hctx.Class().Close() }

// checkEcho sends a pattern of size bytes and looks at what comes back.
func (p *perf) checkEcho(size int) error {
	c, err := p.newCall(pattern(size))
	if err != nil {
		return err
	}
	defer c.h.Close()
	if err := c.once(); err != nil {
		return err
	}
	got, err := c.h.OutputRaw()
	if err == nil && !bytes.Equal(got, c.in) {
		err = fmt.Errorf("the target sent other bytes back than it was sent")
	}
	return err
}

// A call is a handle that is forwarded again and again.
type call struct {
	p    *perf
	h    *hg.Handle
	in   []byte
	cb   hg.ForwardFunc
	done bool
	err  error
	req  *request.Request // with -api sync
}

func (p *perf) newCall(in []byte) (*call, error) {
	h, err := p.hctx.Create(p.peer, p.echo)
	if err != nil {
		return nil, err
	}
	c := &call{p: p, h: h, in: in}
	c.cb = c.ended
	if p.api == "sync" {
		c.req = p.reqs.Create(h.Cancel)
		c.cb = func(_ *hg.Handle, err error) { c.req.Complete(err) }
	}
	return c, nil
}

func (c *call) ended(_ *hg.Handle, err error) { c.done, c.err = true, err }

// once forwards and waits for the callback.
func (c *call) once() error {
	if c.req != nil {
		c.req.Reset(nil)
		if err := c.h.ForwardRaw(c.in, c.cb); err != nil {
			return err
		}
		if !c.req.Wait(-1) {
			return errClosed
		}
		return c.req.Err()
	}
	c.done = false
	if err := c.h.ForwardRaw(c.in, c.cb); err != nil {
		return err
	}
	for !c.done {
		if err := c.p.hctx.Progress(-1); err != nil {
			return err
		}
		c.p.hctx.Trigger(0)
	}
	return c.err
}

var errClosed = errors.New("the context was closed")

// all makes every measurement.
func (p *perf) all() (r result, err error) {
	lat, err := p.latencies(pattern(p.size))
	if err != nil {
		return r, err
	}
	r.P50, r.P99 = percentile(lat, 50), percentile(lat, 99)
	r.Rate = map[string]float64{}
	for _, n := range p.inflight {
		if r.Rate[strconv.Itoa(n)], err = p.rate(n, pattern(p.size)); err != nil {
			return r, err
		}
	}
	if p.bulk > 0 {
		r.Bulk, err = p.bulkRate(push, p.bulk, 1)
	}
	return r, err
}

// percentile returns the q-th percentile of sorted times, in microseconds.
func percentile(sorted []time.Duration, q int) float64 {
	return float64(sorted[len(sorted)*q/100]) / 1e3
}

// latencies makes one call after the other and returns how long each took, sorted.
func (p *perf) latencies(in []byte) ([]time.Duration, error) {
	c, err := p.newCall(in)
	if err != nil {
		return nil, err
	}
	defer c.h.Close()
	for range 100 {
		if err := c.once(); err != nil {
			return nil, err
		}
	}
	lat := make([]time.Duration, 0, 1<<18)
	for end := time.Now().Add(p.time); ; {
		begun := time.Now()
		if !begun.Before(end) && len(lat) > 0 {
			break
		}
		if err := c.once(); err != nil {
			return nil, err
		}
		lat = append(lat, time.Since(begun))
		if p.pause > 0 {
			time.Sleep(p.pause)
		}
	}
	slices.Sort(lat)
	return lat, nil
}

// rate keeps n calls in flight and returns calls per second.
func (p *perf) rate(n int, in []byte) (float64, error) {
	if p.api == "sync" {
		return p.rateSync(n, in)
	}
	f := &flight{in: in}
	f.cb = f.ended
	begun := time.Now()
	for range n {
		c, err := p.newCall(nil)
		if err != nil {
			return 0, err
		}
		defer c.h.Close()
		if err := c.h.ForwardRaw(in, f.cb); err != nil {
			return 0, err
		}
		f.active++
	}
	for f.active > 0 {
		if err := p.hctx.Progress(-1); err != nil {
			return 0, err
		}
		p.hctx.Trigger(0)
		if time.Since(begun) >= p.time {
			f.over = true
		}
		if p.pause > 0 {
			time.Sleep(p.pause)
		}
	}
	return float64(f.done) / time.Since(begun).Seconds(), f.err
}

// A flight is calls of which each is forwarded again when it has ended.
type flight struct {
	in           []byte
	cb           hg.ForwardFunc
	active, done int
	over         bool
	err          error
}

func (f *flight) ended(h *hg.Handle, err error) {
	f.done++
	if err == nil && !f.over {
		if err = h.ForwardRaw(f.in, f.cb); err == nil {
			return
		}
	}
	f.active--
	if err != nil && f.err == nil {
		f.err, f.over = err, true
	}
}

func (p *perf) rateSync(n int, in []byte) (float64, error) {
	var total atomic.Int64
	errs := make([]error, n)
	var all sync.WaitGroup
	begun := time.Now()
	end := begun.Add(p.time)
	for i := range n {
		c, err := p.newCall(in)
		if err != nil {
			return 0, err
		}
		all.Go(func() {
			defer c.h.Close()
			ended := int64(0)
			for ; errs[i] == nil && time.Now().Before(end); ended++ {
				errs[i] = c.once()
				if p.pause > 0 {
					time.Sleep(p.pause)
				}
			}
			total.Add(ended)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(total.Load()) / time.Since(begun).Seconds(), nil
}

// bulkRate has the target make count transfers of size bytes at a time, and returns MiB per second.
func (p *perf) bulkRate(dir moveDir, size int64, count int) (float64, error) {
	m, err := p.newMover(dir, size, count)
	if err != nil {
		return 0, err
	}
	defer m.close()
	if err := m.once(true); err != nil {
		return 0, err
	}
	moved := int64(0)
	begun := time.Now()
	for moved == 0 || time.Since(begun) < p.time {
		if err := m.once(false); err != nil {
			return 0, err
		}
		moved += size * int64(count)
	}
	return float64(moved) / (1 << 20) / time.Since(begun).Seconds(), nil
}

// A mover asks for transfers between the target's memory and its own.
type mover struct {
	c     *call
	buf   []byte
	mem   *bulk.Handle
	dir   moveDir
	count int
}

func (p *perf) newMover(dir moveDir, size int64, count int) (*mover, error) {
	m := &mover{dir: dir, count: count, buf: make([]byte, size)}
	access := bulk.WriteOnly
	if dir == pull {
		access = bulk.ReadOnly
		copy(m.buf, pattern(int(size)))
	}
	var err error
	if m.mem, err = bulk.CreateWith(p.hctx, bulk.Options{Access: access, Eager: -1}, m.buf); err != nil {
		return nil, err
	}
	if m.c, err = p.newCall(nil); err != nil {
		return nil, err
	}
	return m, m.c.h.Reset(p.peer, p.move)
}

// once has the transfers made. With check the side that receives looks at the bytes.
func (m *mover) once(check bool) error {
	r := moveRequest{dir: m.dir, check: check && m.dir == pull, count: uint32(m.count), size: uint64(len(m.buf))}
	var err error
	if m.c.in, err = m.mem.AppendBinary(r.append(m.c.in[:0])); err != nil {
		return err
	}
	if err := m.c.once(); err != nil {
		return err
	}
	if check && m.dir == push && !isPattern(m.buf) {
		return fmt.Errorf("%d bytes that the target pushed did not arrive as they were", len(m.buf))
	}
	return nil
}

func (m *mover) close() {
	m.c.h.Close()
	_ = m.mem.Close(nil)
}
