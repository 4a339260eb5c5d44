package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A healthReport is the JSON form of the result of qs health.
type healthReport struct {
	Address string `json:"address"`
	OK      bool   `json:"ok"`
	Why     string `json:"why,omitempty"` // reason why the program is not ready
}

func (a *app) newHealth() *cobra.Command {
	var n network
	var timeout, wait time.Duration
	c := &cobra.Command{
		Use: "health ADDRESS", Short: "Tell whether a program is ready",
		Long: `Asks a program whether it is ready for requests, as hg/health tells. A program is not while it shuts down, and where it has called SetReady(false). The exit code is 0 if it is ready, and 1 if it is not, or does not answer.`,
		Example: `  qs health tcp://10.0.0.7:9000
  qs health --wait 30s tcp://10.0.0.7:9000   # until it has started
  qs health -t 1s --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return a.health(&n, timeout, wait, args[0]) },
	}
	fs := c.Flags()
	n.peerFlags(fs)
	fs.DurationVarP(&timeout, "timeout", "t", 5*time.Second, "`time` to wait for the answer")
	fs.DurationVarP(&wait, "wait", "w", 0, "`time` in which the program may become ready: it is asked again until then")
	return c
}

// waitInterval is the interval between the requests of qs health --wait.
const waitInterval = 100 * time.Millisecond

// health prints whether the program at addr is ready, and returns an error if it is not. It waits
// for at most the duration wait for the program to become ready.
func (a *app) health(n *network, timeout, wait time.Duration, addr string) error {
	switch {
	case timeout <= 0:
		return usageError{"--timeout is not positive"}
	case wait < 0:
		return usageError{"--wait is negative"}
	}
	ctx, stop := a.untilSignal()
	defer stop()
	until := time.Now().Add(wait)
	r, err := askHealth(ctx, n, timeout, addr)
	for err != nil && r.Address != "" && ctx.Err() == nil && time.Now().Before(until) {
		select {
		case <-time.After(waitInterval):
		case <-ctx.Done():
		}
		r, err = askHealth(ctx, n, min(timeout, max(time.Until(until), waitInterval)), addr)
	}
	if r.Address == "" {
		return err
	}
	return errors.Join(err, a.printResult(r, func(out io.Writer) {
		if r.OK {
			fmt.Fprintln(out, "ok")
		} else {
			fmt.Fprintln(out, "not ok")
		}
	}))
}

// askHealth queries the program at addr once. If addr cannot be dialed, r is empty. If the program
// does not answer, r.Why states the reason.
func askHealth(ctx context.Context, n *network, timeout time.Duration, addr string) (r healthReport, err error) {
	c, err := dial(n, addr)
	if err != nil {
		return r, err
	}
	defer c.close()
	r = healthReport{Address: c.peer.String(), OK: true}
	if _, err = c.callReadOnly(ctx, timeout, "answer", hg.HealthRPC, nil, hg.Metadata{}); err != nil {
		err = files.Explain(c.peer, err)
		r.OK = false
		r.Why, _ = show.SplitError(err)
		err = failedError{c.adviseReadOnly(err, "--timeout")}
	}
	return r, err
}
