package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

func (a *app) newRPCs() *cobra.Command {
	var l rpcLister
	c := &cobra.Command{
		Use: "rpcs ADDRESS", Short: "List the methods of a program, with their types",
		Long: `Lists the methods and RPCs that a program serves, with codec, input and output. The program must have set qs.Config.Inspect, or hg.Config.Reflect. Those of Quicksilver itself, whose names begin with hg/ or qs/, are listed with --all only.`,
		Example: `  qs rpcs tcp://10.0.0.7:9000
  qs rpcs --all --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return a.listRPCs(&l, args[0]) },
	}
	fs := c.Flags()
	l.network.peerFlags(fs)
	fs.DurationVarP(&l.timeout, "timeout", "t", 10*time.Second, "`time` to wait for the answer")
	fs.BoolVarP(&l.all, "all", "a", false, "list the RPCs of Quicksilver itself, too")
	return c
}

// An rpcLister is what the flags of qs rpcs say.
type rpcLister struct {
	network network
	timeout time.Duration
	all     bool
}

// An rpcReport is what --json prints of an RPC. Input and Output are types in Go's words; the output of a stream is that of each item.
type rpcReport struct {
	Name   string `json:"name"`
	Codec  string `json:"codec"`
	Kind   string `json:"kind"` // call, one_way or stream
	Input  string `json:"input,omitempty"`
	Output string `json:"output,omitempty"`
}

func newRPCReport(rpc inspect.RPC) rpcReport {
	r := rpcReport{Name: rpc.Name, Codec: rpc.Codec, Kind: "call"}
	shape, stream := strings.CutSuffix(rpc.Shape, " ...")
	r.Input, r.Output, _ = strings.Cut(shape, " -> ")
	switch {
	case stream:
		r.Kind = "stream"
	case rpc.OneWay:
		r.Kind = "one_way"
	}
	return r
}

// listRPCs prints the RPCs that the program at addr serves.
func (a *app) listRPCs(l *rpcLister, addr string) error {
	c, err := dial(&l.network, addr)
	if err != nil {
		return err
	}
	defer c.close()
	ctx, stop := context.WithTimeout(context.Background(), l.timeout)
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
	if !l.all {
		rpcs = slices.DeleteFunc(rpcs, func(rpc inspect.RPC) bool { return inspect.IsBuiltIn(rpc.Name) })
		if len(rpcs) == 0 {
			a.note("rpcs", fmt.Sprintf("%s serves only RPCs of Quicksilver itself: --all lists them", c.peer))
		}
	}
	reports := []rpcReport{}
	for _, rpc := range rpcs {
		reports = append(reports, newRPCReport(rpc))
	}
	return a.printResult(reports, func(out io.Writer) {
		t := newTable("name", "codec", "input -> output")
		for _, rpc := range rpcs {
			shape := rpc.Shape
			if rpc.OneWay {
				shape += " (one-way)"
			}
			t.addRow(rpc.Name, rpc.Codec, shape)
		}
		t.print(out)
	})
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
