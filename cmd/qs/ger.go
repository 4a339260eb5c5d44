package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const gerAbout = `Guaranteed envelopes: how many requests each peer may have outstanding before their handlers begin, and the memory reserved for them.

Without ADDRESS it computes the memory for the given peers. --groups and --tags give the envelopes that a program needs: the number of groups of processes that a pair shares (communicators, services), times the number of tags of a group that are received in any order. With --in-order, where each message is received before the next is sent, that is 1 a group. If groups differ, --contexts describes each kind of pair: 8x4+2,16x2 means pairs that share 4 groups of 8 tags and one of 2, and pairs that share 2 groups of 16. The result is the largest sum.

With ADDRESS it asks a running program that has set qs.Config.Inspect, or called hg.Class.ServeGauges, such as qs serve: how many envelopes it guarantees, how many of them were used, and how many it has needed of its own targets.`

const gerExamples = `  qs ger --peers 2000
  qs ger --groups 4 --tags 8 --peers 128 --eager 1024
  qs ger tcp://10.0.0.7:9000`

// A guaranteeReport describes the memory that is required to guarantee a number of envelopes of a
// given size to each of a number of peers.
type guaranteeReport struct {
	Peers     int   `json:"peers"`
	Envelopes int   `json:"envelopes_per_peer"`
	Eager     int   `json:"eager_bytes"`
	Processes int   `json:"processes_per_node"`
	All       int   `json:"envelopes"`
	Messages  int64 `json:"message_bytes"` // memory of a process for messages
	Bytes     int64 `json:"guaranteed_bytes"`
	NodeBytes int64 `json:"guaranteed_bytes_per_node"`
	NodeMsgs  int64 `json:"message_bytes_per_node"`
}

// An envelopePlan holds the flags of qs ger from which the required number of envelopes is
// computed.
type envelopePlan struct {
	groups, tags int
	contexts     string
	inOrder      bool
}

func (a *app) newGer() *cobra.Command {
	var n network
	var g guaranteeReport
	var p envelopePlan
	c := &cobra.Command{
		Use: "ger [ADDRESS]", Short: "Compute the memory of envelopes, or show what a program needs", Long: gerAbout, Example: gerExamples,
		Args: wantArgs(0, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.requestGauges(&n, args[0])
			}
			return a.computeGer(&g, &p)
		},
	}
	fs := c.Flags()
	n.peerFlags(fs)
	fs.IntVarP(&g.Peers, "peers", "p", 128, "`peers` of a process")
	fs.IntVar(&g.Envelopes, "ger", 32, "`envelopes` guaranteed to each")
	fs.IntVar(&g.Eager, "eager", 4096, "`bytes` of the largest message in an envelope")
	fs.IntVar(&g.Processes, "processes", 1, "`processes` on a node")
	fs.IntVar(&p.groups, "groups", 0, "`groups` of processes that a pair of processes shares; replaces --ger")
	fs.IntVar(&p.tags, "tags", 1, "`tags` of a group that are received in any order")
	fs.StringVar(&p.contexts, "contexts", "", "`tags`[xGROUPS][+...] of each kind of pair, separated by commas; replaces --ger")
	fs.BoolVar(&p.inOrder, "in-order", false, "each message is received before the next is sent")
	return c
}

// computeGer computes and prints the memory required for the guarantee g.
func (a *app) computeGer(g *guaranteeReport, p *envelopePlan) error {
	if p.groups < 0 || p.tags < 1 || p.groups > 1<<24 || p.tags > 1<<24 {
		return usageError{fmt.Sprintf("--groups %d and --tags %d: want at most %d, and at least 1 tag", p.groups, p.tags, 1<<24)}
	}
	if p.groups != 0 {
		g.Envelopes = p.groups * p.tags
	}
	if p.contexts != "" {
		var err error
		if g.Envelopes, err = computeContexts(p.contexts); err != nil {
			return err
		}
	}
	if p.inOrder {
		g.Envelopes = 1
	}
	if g.Peers < 1 || g.Envelopes < 1 || g.Processes < 1 || g.Eager < 1 || g.Peers > 1<<24 || g.Envelopes > 1<<24 || g.Eager > 1<<24 || g.Processes > 1<<16 {
		return usageError{fmt.Sprintf("--peers %d, --ger %d (or --groups times --tags), --eager %d: want 1 to %d each; --processes %d: want 1 to %d",
			g.Peers, g.Envelopes, g.Eager, 1<<24, g.Processes, 1<<16)}
	}
	if all := float64(g.Peers) * float64(g.Envelopes) * float64(g.Eager+na.EnvelopeOverhead) * float64(g.Processes); all > 1<<62 {
		return usageError{fmt.Sprintf("the guarantee needs %.2g bytes in all, more than 2^62: reduce --peers, --ger, --eager or --processes", all)}
	}
	g.compute()
	return a.printResult(g, g.print)
}

// computeContexts parses the value of --contexts, a list of pairs separated by commas. The groups
// of a pair are separated by plus signs. For each pair it computes the total number of tags in its
// groups, and it returns the largest total.
func computeContexts(text string) (most int, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		sum := 0
		for group := range strings.SplitSeq(pair, "+") {
			tags, times, many := strings.Cut(group, "x")
			n, err1 := strconv.ParseUint(tags, 10, 24)
			k, err2 := uint64(1), error(nil)
			if many {
				k, err2 = strconv.ParseUint(times, 10, 24)
			}
			if err1 != nil || err2 != nil || n*k < 1 || n*k > 1<<24 || sum > 1<<24 {
				return 0, usageError{fmt.Sprintf("--contexts %q: %q is not tags, or tags x groups, as in 8x4+2,16x2", text, group)}
			}
			sum += int(n * k)
		}
		most = max(most, sum)
	}
	return most, nil
}

func (g *guaranteeReport) compute() {
	g.All = g.Peers * g.Envelopes
	g.Messages = int64(g.All) * int64(g.Eager)
	g.Bytes = na.GuaranteedBytes(g.Peers, g.Envelopes, g.Eager)
	g.NodeMsgs = g.Messages * int64(g.Processes)
	g.NodeBytes = g.Bytes * int64(g.Processes)
}

func (g *guaranteeReport) print(out io.Writer) {
	l := newList()
	l.addRow("envelopes guaranteed to each peer", fmt.Sprint(g.Envelopes))
	l.addRow("envelopes of a process", fmt.Sprint(g.All))
	l.addRow("their messages", bytesText(g.Messages))
	l.addRow("and for expedited messages, envelopes", fmt.Sprint(g.Peers*na.ExpeditedEnvelopes))
	l.addRow(fmt.Sprintf("guaranteed, with %d bytes for each", na.EnvelopeOverhead), bytesText(g.Bytes))
	if g.Processes > 1 {
		l.addRow(fmt.Sprintf("messages of %d processes on a node", g.Processes), bytesText(g.NodeMsgs))
		l.addRow("guaranteed on the node", bytesText(g.NodeBytes))
	}
	l.addRow("na.Config", fmt.Sprintf("{Peers: %d, Envelopes: %d, Eager: %d, Budget: %d}", g.Peers, g.Envelopes, g.Eager, g.Bytes))
	if g.Envelopes > 4096 {
		l.addRow("", "Envelopes may be 4096 at most")
	}
	if g.Eager < 256 || g.Eager > 48<<10 {
		l.addRow("", fmt.Sprintf("Eager may be 256 to %d", 48<<10))
	}
	l.print(out)
}

// requestGauges requests the gauges of the program at addr and prints them.
func (a *app) requestGauges(n *network, addr string) error {
	client, err := dial(n, addr)
	if err != nil {
		return err
	}
	defer client.close()
	all, err := client.gauges(context.Background())
	if err != nil {
		return err
	}
	return a.printResult(contextReports(all), func(out io.Writer) {
		for i := range all {
			printGauges(&all[i], out)
		}
	})
}

func (c *client) gauges(ctx context.Context) (all []inspect.Gauges, err error) {
	b, err := c.callReadOnly(ctx, readOnlyTimeout, "tell its gauges", inspect.GaugesRPC, nil, hg.Metadata{})
	if err == nil {
		err = codec.Msgpack.Decode(b, &all)
	}
	return all, c.explainGauges(err)
}

func printGauges(g *inspect.Gauges, out io.Writer) {
	held, waiting := 0, 0
	for _, p := range g.Peers {
		held = max(held, p.HeldMax)
		waiting += p.Queued
	}
	l := newList()
	l.addRow("context", fmt.Sprintf("%d at %s", g.Context, g.Address))
	l.addRow("peers", fmt.Sprint(len(g.Peers)))
	l.addRow("offered to each", fmt.Sprintf("%d envelopes of %d bytes", g.Envelopes, g.Eager))
	l.addRow("guaranteed now", fmt.Sprintf("%s of %s", bytesText(g.Reserved), bytesText(g.Budget)))
	l.addRow("most that a peer has used here", fmt.Sprint(held))
	l.addRow("most needed of a target", fmt.Sprint(g.HighWater))
	l.addRow("messages that had to wait at this end", fmt.Sprintf("%d, %d now", g.Stalls, waiting))
	l.addRow("handlers begun, and held back", fmt.Sprintf("%d, %d", g.Active, g.Waiting))
	l.addRow("longer bodies: inline, lent, no room", fmt.Sprintf("%d, %d, %d", g.Inline, g.Loans, g.NoRoom))
	if g.HighWater > 0 {
		l.addRow("", fmt.Sprintf("its targets should offer it Envelopes: %d", g.HighWater))
	}
	if held > 0 && held < g.Envelopes {
		l.addRow("", fmt.Sprintf("Envelopes: %d would have done here", held))
	}
	l.print(out)
	fmt.Fprintln(out)
	printPeers(g.Peers, out)
}

func printPeers(all []inspect.PeerGauges, out io.Writer) {
	t := newTable("peer", "by", ">offered", ">held", ">most", ">promised", ">free", ">waiting", ">needed", ">room", ">taken", ">room there")
	for _, p := range all {
		t.addRow(p.Label, p.Transport, fmt.Sprint(p.Offered), fmt.Sprint(p.Held), fmt.Sprint(p.HeldMax), fmt.Sprint(p.Promised), fmt.Sprint(p.Free),
			fmt.Sprint(p.Queued), fmt.Sprint(p.HighWater), bytesText(p.Room), bytesText(p.RoomHeld), bytesText(p.RoomFree))
	}
	t.print(out)
}
