package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A pinger calls a target repeatedly. It uses a single goroutine, to keep latencies low.
type pinger struct {
	app      *app
	n        network
	interval time.Duration
	timeout  time.Duration
	count    int
	size     int
	out      io.Writer // receives the output lines; nil: the lines are discarded

	class       *hg.Class
	hctx        *hg.Context
	h           *hg.Handle
	peer        na.Addr
	hasAnswered bool  // a session exists or existed
	lostErr     error // reason for the loss of the session

	silenceShownAt *statusLine // status line that shows the time without an answer
	silentSince    time.Time   // time of the first call in the current series of unanswered calls
	downErr        error       // reason for the missing answer, set once the program is considered lost or the peer timeout has expired

	stats pingStats
	times []time.Duration // the last maxTimes latencies
}

// maxTimes is the maximum number of latencies that are kept, which limits the memory of a long run. p50 and p99 are
// computed from the most recent latencies.
const maxTimes = 1 << 20

func (a *app) newPing() *cobra.Command {
	p := &pinger{app: a, out: a.stdout}
	c := &cobra.Command{
		Use: "ping ADDRESS", Short: "Measure round trips to a program, one by one",
		Long: `Measures round trips to a program, one by one, until Ctrl-C or --count.

Every program that is driven (Serve, or Progress) answers: a ping needs none of the limits and workers that calls need. Whether it is ready for calls, qs health tells.

Without --count, a program that has answered once may fall silent, end and start again: ping shows for how long there has been no answer, connects again, and goes on. With --count a program that is lost ends it.

The exit code is 0 if there was an answer, and not 0 if there was none, or the program was lost and has not answered again.`,
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

// ping calls the program at addr until the run is complete, and prints the statistics.
func (p *pinger) ping(addr string) error {
	switch {
	case p.interval < 0:
		return usageError{fmt.Sprintf("--interval is %v, want 0s or more", p.interval)}
	case p.timeout <= 0:
		return usageError{fmt.Sprintf("--timeout is %v, want more than 0s", p.timeout)}
	case p.count < 0:
		return usageError{fmt.Sprintf("--count is %d, want 0 or more", p.count)}
	case p.size < 0 || p.size > 64<<20:
		return usageError{fmt.Sprintf("--size is %d, want 0 to %d", p.size, 64<<20)}
	}
	p.silenceShownAt = p.app.newStatus()
	if p.app.isJSON {
		p.out = nil
	} else {
		p.out = p.silenceShownAt.writerAbove(p.out)
	}
	if err := p.connect(addr); err != nil {
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
	p.silenceShownAt.clear()
	if p.stats.Answered == 0 {
		if !errors.As(err, new(unansweredError)) {
			err = withoutFate(err)
		}
	} else if err != nil && !errors.As(err, new(brokenPromiseError)) {
		err = failedError{err}
	}
	p.close()
	p.computeStats()
	if err != nil {
		p.stats.Error, _ = show.SplitError(err)
	}
	return errors.Join(err, p.app.printResult(&p.stats, p.print))
}

func (p *pinger) connect(addr string) error {
	addr, err := parseAddr(addr)
	if err != nil {
		return err
	}
	cfg, err := p.n.newConfig(addr)
	if err != nil {
		return err
	}
	if p.class, err = hg.Open(p.n.clientAddr(addr), cfg); err != nil {
		return err
	}
	if p.hctx, err = p.class.NewContext(); err != nil {
		return err
	}
	if p.peer, err = p.hctx.LookupWait(context.Background(), addr); err != nil {
		return explainLookup(addr, err)
	}
	p.hctx.OnFault(func(_ na.Addr, err error) { p.lostErr = err })
	p.h, err = p.hctx.Create(p.peer, hg.HashName(hg.PingRPC))
	return err
}

// close closes the class. It does not wait for peers.
func (p *pinger) close() {
	p.h.Close()
	_ = p.class.Close()
	for p.hctx.Progress(0) == nil {
		p.hctx.Trigger(0)
	}
}

// retryInterval is the minimum interval between calls to a lost program.
const retryInterval = 250 * time.Millisecond

// waitsForLost reports whether ping should wait for a lost program to become reachable again. It does so only if the
// program has answered before and --count is not set.
func (p *pinger) waitsForLost() bool { return p.count == 0 && p.stats.Answered > 0 }

// run makes calls until count is reached, ctx is done, or the target is lost and waitsForLost returns false.
func (p *pinger) run(ctx context.Context) error {
	p.stats.Peer, p.stats.Bytes = p.peer.String(), p.size
	in := bench.Pattern(p.size)
	for (p.count == 0 || p.stats.Sent < p.count) && ctx.Err() == nil {
		begun := time.Now()
		if p.silentSince.IsZero() {
			p.silentSince = begun
		}
		patience := p.timeout
		if !p.waitsForLost() {
			patience = min(patience, time.Until(p.silentSince.Add(p.n.timeout)))
		}
		p.lostErr = nil
		answered, err := p.pingOnce(ctx, in, patience)
		took := time.Since(begun)
		next := begun.Add(p.interval)
		switch {
		case answered:
			p.silentSince, p.downErr = time.Time{}, nil
			p.silenceShownAt.clear()
			p.countAnswer(took)
		case ctx.Err() != nil:
			p.stats.Sent-- // its outcome is unknown
		case err != nil && !p.waitsForLost():
			return p.endLost(err)
		case err != nil:
			p.stats.Lost++
			p.downErr = err
			next = begun.Add(max(p.interval, retryInterval))
		default:
			p.countMiss(took)
			if time.Since(p.silentSince) < p.n.timeout {
				break
			}
			if !p.waitsForLost() {
				return p.newSilenceError(p.n.timeout)
			}
			p.downErr = na.ErrTimeout
		}
		if p.count > 0 && p.stats.Sent == p.count {
			break
		}
		if err := p.progressUntil(ctx, next, func() bool { return p.lostErr != nil && p.downErr == nil }); err != nil {
			return err
		}
		if p.lostErr == nil || p.downErr != nil {
			continue
		}
		if !p.waitsForLost() {
			return p.endLost(p.lostErr)
		}
		p.silentSince, p.downErr = time.Now(), p.lostErr
	}
	switch {
	case p.stats.Answered == 0 && p.stats.Sent > 0:
		return p.newSilenceError(p.timeout)
	case p.downErr != nil:
		return brokenPromiseError{fmt.Errorf("%s was lost: %s", p.peer, silenceText(time.Since(p.silentSince), p.downErr))}
	}
	return nil
}

// silenceText returns a text that states how long a program has not answered. If err contains a reason, the text
// includes it.
func silenceText(d time.Duration, err error) string {
	text := fmt.Sprintf("no answer for %v", d.Truncate(time.Second))
	if call, ok := errors.AsType[*hg.Error](err); ok {
		err = call.Err
	}
	if err == nil || errors.Is(err, na.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return text
	}
	why, _ := show.SplitError(err)
	if _, behind, ok := strings.Cut(why, " cannot be reached: "); ok { // the address is already on the screen
		why = behind
	}
	return text + ": " + show.Text(strings.TrimPrefix(why, na.ErrUnreachable.Error()+": "))
}

// pingOnce makes one call and waits at most the duration patience for the answer, then cancels the call. A rejection
// counts as an answer.
func (p *pinger) pingOnce(ctx context.Context, in []byte, patience time.Duration) (answered bool, err error) {
	done := false
	var failed error
	p.stats.Sent++
	if err := p.h.ForwardRaw(in, func(_ *hg.Handle, err error) { done, failed = true, err }); err != nil {
		return false, err
	}
	if err := p.progressUntil(ctx, time.Now().Add(patience), func() bool { return done }); err != nil {
		return false, err
	}
	if !done {
		p.h.Cancel()
		for !done {
			p.hctx.Trigger(0)
		}
	}
	p.hasAnswered = p.hasAnswered || hg.FateOf(failed) != na.NotRun
	if errors.Is(failed, na.ErrCanceled) {
		return false, nil
	}
	if _, refused := hg.RemoteOf(failed); refused {
		return true, nil // the program is alive
	}
	return failed == nil, failed
}

// progressUntil calls Progress until done returns true, the time end is reached, or ctx is done. It displays the time
// since the last answer.
func (p *pinger) progressUntil(ctx context.Context, end time.Time, done func() bool) error {
	for p.hctx.Trigger(0); !done() && ctx.Err() == nil; p.hctx.Trigger(0) {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if p.waitsForLost() && !p.silentSince.IsZero() {
			silence := time.Since(p.silentSince)
			if silence >= silenceShown {
				p.silenceShownAt.update("%s", silenceText(silence, p.downErr))
			}
			left = min(left, silence.Truncate(time.Second)+time.Second-silence)
		}
		if err := p.hctx.Progress(left); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}

// silenceShown is the time without an answer after which ping and top display that a program is silent.
const silenceShown = time.Second

// newSilenceError returns the error for a target that has not answered for the duration d.
func (p *pinger) newSilenceError(d time.Duration) error {
	switch {
	case !p.hasAnswered:
		return p.endLost(na.WithText(na.ErrUnreachable, fmt.Sprintf("no connection within %v", d)))
	case p.stats.Answered == 0:
		p.stats.Lost = p.stats.Sent
		return show.Advise(unansweredError{fmt.Sprintf("%s is connected and has answered nothing for %v", p.peer, d), na.ErrTimeout},
			"to do:  see what the program does: it has to call Serve, or Progress; if it is busy or stopped, --timeout waits for longer")
	}
	return p.endLost(fmt.Errorf("no answer for %v: %w", d, na.ErrPeerLost))
}

// endLost returns the error that ends ping because its target is lost.
func (p *pinger) endLost(err error) error {
	p.stats.Lost = p.stats.Sent - p.stats.Answered
	switch {
	case errors.Is(err, na.ErrUnreachable):
		return files.Explain(p.peer, err)
	case errors.Is(err, na.ErrPeerLost):
		return fmt.Errorf("%s was lost: %w", p.peer, err)
	}
	return err
}
