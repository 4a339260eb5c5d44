package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

const rpcsUsage = `rpcs [flags] ADDRESS

Lists the RPCs that a program serves, with codec, input and output. The program must have set qs.Config.Inspect, or
hg.Config.Reflect. Those of Quicksilver itself, whose names begin with hg/ or qs/, are listed with -all only.
`

func runRPCs(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(rpcsUsage, flag.ContinueOnError)
	var n network
	n.peerFlags(fs)
	timeout := fs.Duration("timeout", 10*time.Second, "`time` to wait for the answer")
	asJSON := fs.Bool("json", false, "print JSON")
	all := fs.Bool("all", false, "list the RPCs of Quicksilver itself, too")
	if err := parse(fs, args, 1, 1); err != nil {
		return err
	}
	c, err := dial(&n, fs.Arg(0))
	if err != nil {
		return err
	}
	defer c.close()
	ctx, stop := context.WithTimeout(context.Background(), *timeout)
	defer stop()
	b, err := c.callRaw(ctx, inspect.RPCsRPC, nil, hg.Metadata{})
	if remote, ok := hg.RemoteOf(err); ok && remote.Refused && remote.Code == hg.ErrNoEntry {
		return fmt.Errorf("%s does not publish its RPCs; set qs.Config.Inspect there, or hg.Config.Reflect: %w", c.peer, err)
	}
	if err != nil {
		return c.advise(inspect.RPCsRPC, err)
	}
	rpcs, err := inspect.DecodeRPCs(b)
	if err != nil {
		return fmt.Errorf("the list of RPCs of %s: %w", c.peer, err)
	}
	if !*all {
		if rpcs = slices.DeleteFunc(rpcs, func(rpc inspect.RPC) bool { return inspect.IsBuiltIn(rpc.Name) }); len(rpcs) == 0 {
			fmt.Fprintf(os.Stderr, "%s serves only RPCs of Quicksilver itself: -all lists them\n", c.peer)
		}
	}
	if *asJSON {
		return show.JSON(out, rpcs)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, rpc := range rpcs {
		shape := rpc.Shape
		if rpc.OneWay {
			shape += " (one-way)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", show.Text(rpc.Name), show.Text(rpc.Codec), show.Text(shape))
	}
	return w.Flush()
}

// callRaw makes a call of bytes, whose deadline travels with it.
func (c *client) callRaw(ctx context.Context, rpc string, in []byte, meta hg.Metadata) ([]byte, error) {
	h, err := c.hctx.Create(c.peer, hg.HashName(rpc))
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := h.SetMeta(meta); err != nil {
		return nil, err
	}
	out, err := h.CallRaw(ctx, in)
	return slices.Clone(out), err
}
