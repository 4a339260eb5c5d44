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

// A healthReport is what --json prints.
type healthReport struct {
	Address string `json:"address"`
	OK      bool   `json:"ok"`
	Why     string `json:"why,omitempty"` // it is not
}

func (a *app) newHealth() *cobra.Command {
	var n network
	var timeout time.Duration
	c := &cobra.Command{
		Use: "health ADDRESS", Short: "Tell whether a program is ready",
		Long: `Asks a program whether it is ready for requests, as hg/health tells. A program is not while it shuts down, and where it has called SetReady(false). The exit code is 0 if it is ready, and 1 if it is not, or does not answer.`,
		Example: `  qs health tcp://10.0.0.7:9000
  qs health -t 1s --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return a.health(&n, timeout, args[0]) },
	}
	fs := c.Flags()
	n.peerFlags(fs)
	fs.DurationVarP(&timeout, "timeout", "t", 5*time.Second, "`time` to wait for the answer")
	return c
}

// health prints whether the program at addr is ready, and fails if it is not.
func (a *app) health(n *network, timeout time.Duration, addr string) error {
	if timeout <= 0 {
		return usageError{"--timeout is not positive"}
	}
	c, err := dial(n, addr)
	if err != nil {
		return err
	}
	defer c.close()
	r := healthReport{Address: c.peer.String(), OK: true}
	if _, err = c.ask(context.Background(), timeout, "answer", hg.HealthRPC, nil, hg.Metadata{}); err != nil {
		err = files.Explain(c.peer, err)
		r.OK = false
		r.Why, _ = show.SplitError(err)
		err = failedError{c.adviseAsk(err, "--timeout")}
	}
	return errors.Join(err, a.printResult(r, func(out io.Writer) {
		if r.OK {
			fmt.Fprintln(out, "ok")
		} else {
			fmt.Fprintln(out, "not ok")
		}
	}))
}
