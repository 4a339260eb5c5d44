package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

func (a *app) newTop() *cobra.Command {
	var t topView
	c := &cobra.Command{
		Use: "top ADDRESS", Short: "Watch the work, the envelopes and the peers of a program",
		Long: `Shows the gauges of a program, refreshed every --interval: its work, its envelopes, and its peers, the heaviest user first. The program must have set qs.Config.Inspect, or called hg.Class.ServeGauges. Stop it with Ctrl-C.

With --json it prints a line for each look.`,
		Example: `  qs top tcp://10.0.0.7:9000
  qs top -n 1 --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return a.top(&t, args[0]) },
	}
	fs := c.Flags()
	t.network.peerFlags(fs)
	fs.DurationVarP(&t.interval, "interval", "i", time.Second, "`time` between two looks")
	fs.IntVarP(&t.count, "count", "n", 0, "`looks` to take; 0: until Ctrl-C")
	return c
}

// A topView is what the flags of qs top say.
type topView struct {
	network  network
	interval time.Duration
	count    int
}

// top looks at a program again and again.
func (a *app) top(t *topView, addr string) error {
	if t.interval <= 0 || t.count < 0 {
		return usageError{"--interval is not positive, or --count negative"}
	}
	c, err := dial(&t.network, addr)
	if err != nil {
		return err
	}
	defer c.close()
	ctx, stop := a.untilSignal()
	defer stop()
	again := time.NewTicker(t.interval)
	defer again.Stop()
	clear := ""
	if isScreen(a.out) {
		clear = "\x1b[H\x1b[J" // the whole screen
	}
	var last []inspect.Gauges
	for look := 1; ; look++ {
		all, err := c.gauges(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case a.json:
			err = show.JSON(a.out, contextReports(all))
		default:
			_, err = fmt.Fprintf(a.out, "%s%s  %s\n", clear, c.peer, time.Now().Format(time.TimeOnly))
			printTop(all, last, t.interval, a.out)
		}
		if err != nil || look == t.count {
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
		fmt.Fprintf(out, "\ncontext %d at %s: %s, %d handlers at work, %d requests wait for one to end\n", g.Context, show.Text(g.Address), countText(len(g.Peers), "peer"), g.Active, g.Waiting)
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
