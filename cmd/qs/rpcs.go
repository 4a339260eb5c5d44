package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

func (a *app) newRPCs() *cobra.Command {
	var l rpcsCommand
	c := &cobra.Command{
		Use: "rpcs ADDRESS [METHOD]", Short: "List the methods of a program, with their types",
		Long: `Lists the methods and RPCs that a program serves, with codec, input and output. The program must have set qs.Config.Inspect, or hg.Config.Reflect. Those of Quicksilver itself, whose names begin with hg/ or qs/, are listed with --all only. With METHOD it shows that one, a field a line. The kind of a method is call, one-way, stream, upload or duplex. qs call takes the first three: the caller of an upload or a duplex sends items, which needs a program.`,
		Example: `  qs rpcs tcp://10.0.0.7:9000
  qs rpcs tcp://10.0.0.7:9000 greet
  qs rpcs --all --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 2), ValidArgsFunction: l.network.completeMethods, SuggestFor: []string{"list", "ls", "methods", "describe"},
		RunE: func(_ *cobra.Command, args []string) error { return a.listRPCs(&l, args) },
	}
	fs := c.Flags()
	l.network.peerFlags(fs)
	fs.DurationVarP(&l.timeout, "timeout", "t", 10*time.Second, "`time` to wait for the answer")
	fs.BoolVarP(&l.all, "all", "a", false, "list the RPCs of Quicksilver itself, too")
	return c
}

// An rpcsCommand holds the flags of qs rpcs.
type rpcsCommand struct {
	network network
	timeout time.Duration
	all     bool
}

// An rpcReport is the JSON form of an RPC. Input and Output are types in Go syntax. For a stream, Output is the type of
// each item.
type rpcReport struct {
	Name   string `json:"name"`
	Codec  string `json:"codec"`
	Kind   string `json:"kind"` // call, one_way, stream, upload or duplex
	Input  string `json:"input,omitempty"`
	Items  string `json:"items,omitempty"` // for an upload or a duplex: type of each item sent by the caller
	Output string `json:"output,omitempty"`
}

func newRPCReport(rpc inspect.RPC) rpcReport {
	r := rpcReport{Name: rpc.Name, Codec: rpc.Codec, Kind: "call"}
	shape, stream := strings.CutSuffix(rpc.Shape, " ...")
	r.Input, r.Output, _ = strings.Cut(shape, " -> ")
	switch s, _ := schema.ParseSignature(rpc.Shape); {
	case s.Up != nil:
		r.Kind, r.Input, r.Items = string(s.Kind), s.In.String(), s.Up.String()
	case stream:
		r.Kind = "stream"
	case rpc.OneWay:
		r.Kind = "one_way"
	}
	return r
}

// listRPCs prints the RPCs that a program serves. The arguments are the program's address and, optionally, the name of
// the only RPC to print.
func (a *app) listRPCs(l *rpcsCommand, args []string) error {
	if err := newAddressError(args); err != nil {
		return err
	}
	c, err := dial(&l.network, strings.TrimSuffix(args[0], "/"))
	if err != nil {
		return err
	}
	defer c.close()
	b, err := c.callReadOnly(context.Background(), l.timeout, "list its methods", inspect.RPCsRPC, nil, hg.Metadata{})
	if isNoMethod(err) {
		return show.Reword(err, fmt.Sprintf("%s does not publish its RPCs: set qs.Config.Inspect there, or hg.Config.Reflect", c.peer))
	}
	if err != nil {
		return c.adviseReadOnly(c.adviseError(inspect.RPCsRPC, err), "--timeout")
	}
	rpcs, err := inspect.DecodeRPCs(b)
	if err != nil {
		return fmt.Errorf("list RPCs of %s: %w", c.peer, err)
	}
	if len(args) == 2 {
		one := slices.IndexFunc(rpcs, func(rpc inspect.RPC) bool { return rpc.Name == args[1] })
		if one < 0 {
			return c.newNoMethodError(args[1], "", rpcs)
		}
		r := newRPCReport(rpcs[one])
		return a.printResult([]rpcReport{r}, r.print)
	}
	if !l.all {
		rpcs = slices.DeleteFunc(rpcs, func(rpc inspect.RPC) bool { return inspect.IsBuiltIn(rpc.Name) })
		if len(rpcs) == 0 {
			a.printNote("rpcs", fmt.Sprintf("%s serves only RPCs of Quicksilver itself: --all lists them", c.peer))
		}
	}
	reports := []rpcReport{}
	for _, rpc := range rpcs {
		reports = append(reports, newRPCReport(rpc))
	}
	return a.printResult(reports, func(out io.Writer) {
		t := newTable("name", "kind", "codec", "input -> output")
		for i, rpc := range rpcs {
			t.addRow(rpc.Name, strings.ReplaceAll(reports[i].Kind, "_", "-"), rpc.Codec, strings.TrimSuffix(rpc.Shape, " ..."))
		}
		t.print(out)
	})
}

// print prints a method's description, with each field of its types on a separate line.
func (r rpcReport) print(out io.Writer) {
	fmt.Fprintf(out, "%s: %s, codec %s\n", show.Text(r.Name), strings.ReplaceAll(r.Kind, "_", "-"), show.Text(r.Codec))
	for _, side := range [][2]string{{"input", r.Input}, {"items", r.Items}, {"output", r.Output}} {
		if side[1] != "" {
			fmt.Fprintf(out, "%s: %s\n", side[0], fieldLines(show.Text(side[1])))
		}
	}
}

// fieldLines returns a type's text split into lines, with one field on each line.
func fieldLines(shape string) string {
	var b strings.Builder
	depth := 0
	line := func() { b.WriteString("\n" + strings.Repeat("  ", depth)) }
	for i := 0; i < len(shape); i++ {
		switch rest := shape[i:]; {
		case strings.HasPrefix(rest, "{}"):
			b.WriteString("{}")
			i++
		case rest[0] == '{':
			depth++
			b.WriteByte('{')
			line()
		case rest[0] == '}':
			depth--
			line()
			b.WriteByte('}')
		case strings.HasPrefix(rest, ", "):
			line()
			i++
		default:
			b.WriteByte(rest[0])
		}
	}
	return b.String()
}

// completionTime is the maximum time that shell completion waits for method names.
const completionTime = 500 * time.Millisecond

// completeMethods returns completions for the METHOD argument, which it requests from the program at ADDRESS. It omits
// names that a shell would require to be quoted.
func (n *network) completeMethods(_ *cobra.Command, args []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) != 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := dial(n, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.close()
	b, err := c.callReadOnly(context.Background(), completionTime, "list its methods", inspect.RPCsRPC, nil, hg.Metadata{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	rpcs, _ := inspect.DecodeRPCs(b)
	for _, rpc := range rpcs {
		if strings.HasPrefix(rpc.Name, typed) && isPlainWord(rpc.Name) && (typed != "" || !inspect.IsBuiltIn(rpc.Name)) {
			names = append(names, rpc.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// callRaw makes a call whose input and output are uninterpreted bytes. The deadline of ctx is sent to the target.
func (c *client) callRaw(ctx context.Context, rpc string, in []byte, meta hg.Metadata) ([]byte, error) {
	h, err := c.context.Create(c.peer, hg.HashName(rpc))
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
