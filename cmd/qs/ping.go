package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A pinger calls one target again and again. All of it runs on one goroutine, which makes the times short.
type pinger struct {
	app      *app
	n        network
	interval time.Duration
	timeout  time.Duration
	count    int
	size     int
	out      io.Writer // of the lines; nil for none

	class *hg.Class
	hctx  *hg.Context
	h     *hg.Handle
	peer  na.Addr
	met   bool  // there is a session, or was
	fault error // it was lost

	stats pingStats
	times []time.Duration // the last maxTimes
}

// maxTimes bounds the memory of a ping that runs for days: p50 and p99 are of the last ones.
const maxTimes = 1 << 20

func (a *app) newPing() *cobra.Command {
	p := &pinger{app: a, out: a.out}
	c := &cobra.Command{
		Use: "ping ADDRESS", Short: "Measure round trips to a program, one by one",
		Long: `Measures round trips to a program, one by one, until Ctrl-C or --count.

Every program that is driven (Serve, or Progress) answers: a ping needs none of the limits and workers that calls need. Whether it is ready for calls, qs health tells. The exit code is 0 if there was an answer, and not 0 if there was none or the program was lost.`,
		Example: `  qs ping tcp://10.0.0.7:9000
  qs ping -c 1 -t 3s tcp://10.0.0.7:9000   # is it alive?
  qs ping -c 10000 -i 0 --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return p.ping(args[0]) },
	}
	fs := c.Flags()
	p.n.measureFlags(fs)
	fs.DurationVarP(&p.interval, "interval", "i", time.Second, "`time` from one call to the next; 0: as fast as possible")
	fs.DurationVarP(&p.timeout, "timeout", "t", time.Second, "`time` after which a call is canceled and counted as lost")
	fs.IntVarP(&p.count, "count", "c", 0, "`calls` to make; 0: until Ctrl-C")
	fs.IntVarP(&p.size, "size", "s", 64, "`bytes` of a call's input and output")
	return c
}

// ping calls the program at addr until the end, and prints the statistics.
func (p *pinger) ping(addr string) error {
	if p.interval < 0 || p.timeout <= 0 || p.count < 0 || p.size < 0 || p.size > 64<<20 {
		return usageError{"--interval, --count or --size is negative, --timeout not positive, or --size more than 64 MiB"}
	}
	if p.app.json {
		p.out = nil
	}
	if err := p.open(addr); err != nil {
		return err
	}
	ctx, stop := p.app.untilSignal()
	defer stop()
	defer context.AfterFunc(ctx, p.hctx.Wake)()
	stopProfile, err := p.n.startProfile()
	if err != nil {
		p.close()
		return err
	}
	defer stopProfile()
	bench.Burden(p.n.busy)
	err = p.run(ctx)
	if p.stats.Answered == 0 {
		if !errors.As(err, new(unansweredError)) {
			err = withoutFate(err)
		}
	} else if err != nil {
		err = failedError{err}
	}
	p.close()
	p.sum()
	if err != nil {
		p.stats.Error, _ = show.SplitError(err)
	}
	return errors.Join(err, p.app.printResult(&p.stats, p.print))
}

func (p *pinger) open(addr string) error {
	addr, err := parseAddr(addr)
	if err != nil {
		return err
	}
	cfg, err := p.n.config(addr)
	if err != nil {
		return err
	}
	if p.class, err = hg.Open(p.n.to(addr), cfg); err != nil {
		return err
	}
	if p.hctx, err = p.class.NewContext(); err != nil {
		return err
	}
	if p.peer, err = p.hctx.LookupWait(context.Background(), addr); err != nil {
		return explainLookup(addr, err)
	}
	p.hctx.OnFault(func(_ na.Addr, err error) { p.fault = err })
	p.h, err = p.hctx.Create(p.peer, hg.HashName(hg.PingRPC))
	return err
}

// close ends everything; nobody has to be waited for.
func (p *pinger) close() {
	p.h.Close()
	_ = p.class.Close()
	for p.hctx.Progress(0) == nil {
		p.hctx.Trigger(0)
	}
}

// run pings until count calls were made, ctx ends, or the target is lost.
func (p *pinger) run(ctx context.Context) error {
	p.stats.Peer, p.stats.Bytes = p.peer.String(), p.size
	in := bench.Pattern(p.size)
	var silent time.Time // when the first call in a row was made that nobody answered
	for (p.count == 0 || p.stats.Sent < p.count) && ctx.Err() == nil {
		begun := time.Now()
		if silent.IsZero() {
			silent = begun
		}
		patience := min(p.timeout, time.Until(silent.Add(p.n.timeout)))
		answered, err := p.once(ctx, in, patience)
		took := time.Since(begun)
		switch {
		case err != nil:
			return p.lost(err)
		case answered:
			silent = time.Time{}
			p.answered(took)
		case ctx.Err() != nil:
			p.stats.Sent-- // nobody knows what would have become of it
		default:
			p.missed(took)
			if silence := time.Since(silent); silence >= p.n.timeout {
				return p.silent(p.n.timeout)
			}
		}
		if p.count > 0 && p.stats.Sent == p.count {
			break
		}
		if err := p.until(ctx, begun.Add(p.interval), func() bool { return p.fault != nil }); err != nil {
			return err
		}
		if p.fault != nil {
			return p.lost(p.fault)
		}
	}
	if p.stats.Answered == 0 && p.stats.Sent > 0 {
		return p.silent(p.timeout)
	}
	return nil
}

// once makes one call. It is canceled when there is no answer in time. A refusal is an answer, too.
func (p *pinger) once(ctx context.Context, in []byte, patience time.Duration) (answered bool, err error) {
	done := false
	var failed error
	p.stats.Sent++
	if err := p.h.ForwardRaw(in, func(_ *hg.Handle, err error) { done, failed = true, err }); err != nil {
		return false, err
	}
	if err := p.until(ctx, time.Now().Add(patience), func() bool { return done }); err != nil {
		return false, err
	}
	if !done {
		p.h.Cancel()
		for !done {
			p.hctx.Trigger(0)
		}
	}
	p.met = p.met || hg.FateOf(failed) != na.NotRun
	if errors.Is(failed, na.ErrCanceled) {
		return false, nil
	}
	if _, refused := hg.RemoteOf(failed); refused {
		return true, nil // it lives
	}
	return failed == nil, failed
}

// until moves bytes until done reports true, or the time has come, or ctx ends.
func (p *pinger) until(ctx context.Context, end time.Time, done func() bool) error {
	for p.hctx.Trigger(0); !done() && ctx.Err() == nil; p.hctx.Trigger(0) {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if err := p.hctx.Progress(left); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}

// silent ends the ping of a target that has answered nothing for so long.
func (p *pinger) silent(d time.Duration) error {
	switch {
	case !p.met:
		return p.lost(na.WithText(na.ErrUnreachable, fmt.Sprintf("no connection within %v", d)))
	case p.stats.Answered == 0:
		p.stats.Lost = p.stats.Sent
		return show.Advise(unansweredError{fmt.Sprintf("%s is connected and has answered nothing for %v", p.peer, d), na.ErrTimeout},
			"to do:  see what the program does: it has to call Serve, or Progress; if it is busy or stopped, --timeout waits for longer")
	}
	return p.lost(fmt.Errorf("no answer for %v: %w", d, na.ErrPeerLost))
}

// lost ends the ping.
func (p *pinger) lost(err error) error {
	p.stats.Lost = p.stats.Sent - p.stats.Answered
	switch {
	case errors.Is(err, na.ErrUnreachable):
		return files.Explain(p.peer, err)
	case errors.Is(err, na.ErrPeerLost):
		return fmt.Errorf("%s was lost: %w", p.peer, err)
	}
	return err
}
