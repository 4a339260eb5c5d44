package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/vbauerster/mpb/v8/cwriter"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

const topUsage = `top [flags] ADDRESS

Shows the gauges of a program, refreshed every -interval: its work, its envelopes, and its peers, the heaviest user
first. The program must have set qs.Config.Inspect, or called hg.Class.ServeGauges. Stop it with Ctrl-C.
`

func runTop(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(topUsage, flag.ContinueOnError)
	var n network
	n.peerFlags(fs)
	interval := fs.Duration("interval", time.Second, "`time` between two looks")
	count := fs.Int("n", 0, "`looks` to take; 0: until Ctrl-C")
	asJSON := fs.Bool("json", false, "print a line of JSON for each look")
	if err := parse(fs, args, 1, 1); err != nil {
		return err
	}
	if *interval <= 0 || *count < 0 {
		return usageError{"-interval is not positive, or -n negative"}
	}
	c, err := dial(&n, fs.Arg(0))
	if err != nil {
		return err
	}
	defer c.close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	again := time.NewTicker(*interval)
	defer again.Stop()
	clear := "\x1b[H\x1b[J" // the whole screen
	if f, ok := out.(*os.File); !ok || !cwriter.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		clear = ""
	}
	var last []inspect.Gauges
	for look := 1; ; look++ {
		all, err := c.gauges(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case *asJSON:
			err = show.JSON(out, all)
		default:
			_, err = fmt.Fprintf(out, "%s%s  %s\n", clear, c.peer, time.Now().Format(time.TimeOnly))
			printTop(all, last, *interval, out)
		}
		if err != nil || look == *count {
			return err
		}
		last = all
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// printTop shows a look, with the rates since the last one.
func printTop(all, last []inspect.Gauges, since time.Duration, out io.Writer) {
	for i := range all {
		g := &all[i]
		before := g
		if i < len(last) {
			before = &last[i]
		}
		rate := func(now, then int64) float64 { return float64(now-then) / since.Seconds() }
		fmt.Fprintf(out, "\ncontext %d at %s: %d peers, %d handlers at work, %d requests wait for one to end\n", g.Context, show.Text(g.Address), len(g.Peers), g.Active, g.Waiting)
		fmt.Fprintf(out, "guaranteed %s of %s; most envelopes needed of a target %d; messages that had to wait %d\n",
			bytesText(g.Reserved), bytesText(g.Budget), g.HighWater, g.Stalls)
		fmt.Fprintf(out, "longer bodies per second: %.1f inline, %.1f lent, of these %.1f for want of room\n",
			rate(g.Inline, before.Inline), rate(g.Loans, before.Loans), rate(g.NoRoom, before.NoRoom))
		slices.SortStableFunc(g.Peers, func(a, b inspect.PeerGauges) int {
			return cmp.Or(cmp.Compare(b.Held+b.Queued, a.Held+a.Queued), cmp.Compare(a.Address, b.Address))
		})
		printPeers(g.Peers, out)
	}
}
