package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An infoFact is one line of qs info and one field of its JSON output. If the fact is not
// available, err is set and there is no value.
type infoFact struct {
	key   string // JSON field name
	label string
	value any
	unit  string
	err   error
}

func (f infoFact) String() string {
	if f.err != nil {
		return "unknown: " + f.err.Error()
	}
	text := fmt.Sprint(f.value)
	if list, ok := f.value.([]string); ok {
		if text = strings.Join(list, "  "); len(list) == 0 {
			text = "none"
		}
	}
	if f.unit != "" {
		text += " " + f.unit
	}
	return text
}

func (a *app) newInfo() *cobra.Command {
	var n network
	c := &cobra.Command{
		Use: "info [ADDRESS]", Short: "Show transports, addresses, limits and the kernel's settings",
		Long: `Shows the transports of this program, the addresses that it can listen on, the limits of each transport, and the settings of the kernel that decide how fast and how large things can be.

With ADDRESS it shows by which transport that program is reached, and why. Values that cannot be read are "unknown", and null in JSON.`,
		Example: `  qs info
  qs info --local tcp://10.0.0.7:9000`,
		Args: wantArgs(0, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.printFacts(slices.Concat(programFacts(), networkFacts(), kernelFacts()))
			}
			facts, err := peerFacts(&n, args[0])
			if err != nil {
				return err
			}
			return a.printFacts(facts)
		},
	}
	n.peerFlags(c.Flags())
	return c
}

func (a *app) printFacts(facts []infoFact) error {
	object := map[string]any{}
	for _, f := range facts {
		object[f.key] = f.value
		if f.err != nil {
			object[f.key] = nil
		}
	}
	return a.printResult(object, func(out io.Writer) {
		l := newList()
		for _, f := range facts {
			l.addRow(f.label, f.String())
		}
		l.print(out)
	})
}

// peerFacts returns facts about the connection from this machine to the peer at addr.
func peerFacts(n *network, addr string) ([]infoFact, error) {
	c, err := dial(n, addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.callReadOnly(context.Background(), readOnlyTimeout, "answer", hg.PingRPC, nil, hg.Metadata{}); err != nil {
		return nil, c.adviseReadOnly(files.Explain(c.peer, err), "")
	}
	var facts []infoFact
	for _, p := range c.context.NA().Peers() {
		facts = append(facts,
			infoFact{key: "address", label: "address", value: p.Addr.String()},
			infoFact{key: "transport", label: "reached by", value: p.Transport},
			infoFact{key: "why", label: "because", value: cmp.Or(p.Why, "no other transport is open here (--local)")},
			infoFact{key: "envelopes", label: "envelopes guaranteed to this process", value: p.Promised})
	}
	return facts, nil
}

// programFacts returns the facts about this program, including the defaults of a class.
func programFacts() []infoFact {
	facts := []infoFact{
		{key: "go", label: "Go", value: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
		{key: "cores", label: "cores", value: runtime.NumCPU()},
		{key: "gomaxprocs", label: "GOMAXPROCS", value: runtime.GOMAXPROCS(0)},
		{key: "plugins", label: "plugins linked in", value: na.Schemes()},
	}
	for _, scheme := range na.Schemes() {
		class, err := na.Open(scheme+"://", na.Config{})
		if err != nil {
			facts = append(facts, infoFact{key: scheme, label: scheme, err: err})
			continue
		}
		l, cfg := class.Limits(), class.Config()
		for _, f := range []infoFact{
			{"max_unexpected_bytes", "unexpected message, at most", l.MaxUnexpected, "bytes", nil},
			{"max_expected_bytes", "expected message, at most", l.MaxExpected, "bytes", nil},
			{"max_segments", "segments of one memory, at most", l.MaxSegments, "", nil},
			{"max_contexts", "contexts of a node, at most", l.MaxContexts, "", nil},
			{"envelopes", "envelopes guaranteed to each peer", l.Envelopes, "", nil},
			{"max_tag", "highest tag", uint64(l.MaxTag), "", nil},
			{"eager_bytes", "default of Eager", cfg.Eager, "bytes", nil},
			{"budget_bytes", "default of Budget", cfg.Budget, "bytes", nil},
			{"send_queue", "default of SendQueue", cfg.SendQueue, "messages", nil},
			{"peer_timeout", "default of PeerTimeout", cfg.PeerTimeout.String(), "", nil},
			{"connect_timeout", "default of ConnectTimeout", cfg.ConnectTimeout.String(), "", nil},
			{"spin", "default of Spin", cfg.Spin.String(), "", nil},
		} {
			f.key, f.label = scheme+"_"+f.key, scheme+": "+f.label
			facts = append(facts, f)
		}
		_ = class.Close()
	}
	return facts
}

// networkFacts returns facts about this machine's network interfaces.
func networkFacts() []infoFact {
	listen := infoFact{key: "addresses", label: "addresses to listen on"}
	mtu := infoFact{key: "loopback_mtu", label: "MTU of the loopback", unit: "bytes", err: fmt.Errorf("no loopback interface")}
	var addrs []string
	interfaces, err := net.Interfaces()
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		if i.Flags&net.FlagLoopback != 0 {
			mtu.value, mtu.err = i.MTU, nil
		}
		ips, _ := i.Addrs()
		for _, a := range ips {
			if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
				at := net.JoinHostPort(ip.IP.String(), "PORT")
				if addrs = append(addrs, "tcp://"+at); ip.IP.IsLoopback() && slices.Contains(na.Schemes(), "udp") {
					addrs = append(addrs, "udp://"+at) // other interfaces require QS_UDP_TRUSTED
				}
			}
		}
	}
	if slices.Contains(na.Schemes(), "sm") && runtime.GOOS == "linux" {
		addrs = append(addrs, "sm://NAME")
	}
	listen.value, listen.err = addrs, err
	return []infoFact{listen, mtu}
}
