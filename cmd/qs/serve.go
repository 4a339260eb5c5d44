package main

import (
	"cmp"
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
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

func (a *app) newServe() *cobra.Command {
	var s serveCommand
	c := &cobra.Command{
		Use: "serve [ADDRESS]", Short: "Serve files and the other commands",
		Long: `Serves the other commands: ping, health, perf, cp, call, bench, rpcs, top and ger. Without ADDRESS it listens on 127.0.0.1, on a port that the system chooses. The first line of its output is its address.

Its methods are there to be called:

  greet  '"Ada"'                         answers with a text
  add    '{"A": 1, "B": 2}'              adds two numbers
  count  '{"N": 3, "Interval": "1s"}'    is a stream of the numbers from 1 to N
  sleep  '"5s"'                          answers after a time; with --timeout 1s
                                         qs call ends with exit code 4
  fail   '"text"'                        answers with an error: exit code 5

Stop it with Ctrl-C or SIGTERM: it takes no new requests then, and those that are under way may end for --drain; a second signal ends it at once. The exit code is 0 if all have ended, and 1 if some were broken off, which it names.

There is no access control without --ca: anyone who can connect reads what is below --root, and with --write also writes there.`,
		Example: `  qs serve tcp://127.0.0.1:9000
  qs serve --root /data tcp://10.0.0.7:9000
  qs serve --root /data --write --cert me.pem --key me.key --ca ca.pem
  qs serve --debug localhost:8080`,
		Args: wantArgs(0, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return a.runServe(&s, args) },
	}
	fs := c.Flags()
	s.network.measureFlags(fs)
	s.network.handlerFlag(c)
	fs.BoolVar(&s.child, "child", false, "exit at the end of the standard input")
	fs.StringVarP(&s.root, "root", "r", "", "`folder` that qs cp may read")
	fs.DurationVar(&s.drain, "drain", 10*time.Second, "`time` in which requests under way may end after a signal; 0: none")
	fs.BoolVarP(&s.write, "write", "w", false, "let qs cp write there, too: any program that can reach the address")
	fs.StringVarP(&s.debug, "debug", "d", "", "`HOST:PORT` of an HTTP page with the state of this process: any client that can reach it sees peers and names of methods")
	return c
}

// A serveCommand holds the flags of qs serve.
type serveCommand struct {
	network network
	child   bool
	root    string
	write   bool
	debug   string
	drain   time.Duration
}

// A serveReport is the JSON form of the addresses that the program prints once it is listening.
type serveReport struct {
	Address   string `json:"address"`
	DebugPage string `json:"debug_page,omitempty"` // URL of the debug page
}

// maxSleep is the maximum time that the method sleep may delay its answer.
const maxSleep = time.Hour

// serveExamples serves typed methods with which users can try out the other commands and simulate failures.
func serveExamples(class *hg.Class) error {
	for _, rpc := range []hg.RPC{
		{Name: "add", Shape: "{A int, B int} -> int", Handler: func(r hg.Request) error {
			var in struct{ A, B int }
			if err := r.Input(&in); err != nil {
				return err
			}
			return r.Respond(in.A+in.B, nil)
		}},
		{Name: "greet", Shape: "string -> string", Handler: func(r hg.Request) error {
			var name string
			if err := r.Input(&name); err != nil {
				return err
			}
			return r.Respond("hello, "+cmp.Or(name, "world"), nil)
		}},
		{Name: "sleep", Shape: "time.Duration -> string", Handler: func(r hg.Request) error {
			var d time.Duration
			if err := r.Input(&d); err != nil {
				return err
			}
			if d < 0 || d > maxSleep {
				return hg.Errorf(hg.ErrBadInput, "invalid duration %v, want 0s to %v", d, maxSleep)
			}
			if err := r.Detach(); err != nil {
				return err
			}
			time.AfterFunc(d, func() { _ = r.Respond("slept "+d.String(), nil) })
			return nil
		}},
		{Name: "fail", Shape: "string -> string", Handler: func(r hg.Request) error {
			var text string
			if err := r.Input(&text); err != nil {
				return err
			}
			return errors.New(cmp.Or(text, "fail was called"))
		}},
	} {
		rpc.Codec, rpc.Inline = codec.Msgpack, true
		if _, err := class.RegisterRPC(rpc); err != nil {
			return err
		}
	}
	return nil
}

// A countInput is the input of the method count. It is an alias of an unnamed type, so that qs rpcs lists its fields
// without a type name.
type countInput = struct {
	N        int
	Interval time.Duration
}

// streamCount is a stream with which users can try out qs call.
var streamCount = qs.DefineStream[countInput, int]("count", qs.WithCodec(codec.Msgpack))

// defaultCount is the number of items that the method count sends if it has no input.
const defaultCount = 10

// serveCount sends the numbers from 1 to N. It waits for the duration Interval before each number except the first.
func serveCount(ctx context.Context, in countInput, send func(int) error) error {
	if in.N < 0 || in.Interval < 0 || in.Interval > maxSleep {
		return qs.Errorf(qs.ErrBadInput, "N is %d and Interval is %v, want N >= 0 and an Interval from 0s to %v", in.N, in.Interval, maxSleep)
	}
	for i := range cmp.Or(in.N, defaultCount) {
		if i > 0 && in.Interval > 0 {
			t := time.NewTimer(in.Interval)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			}
		}
		if err := send(i + 1); err != nil {
			return err
		}
	}
	return nil
}

// runServe runs a target until it is interrupted by a signal or, if --child is set, until its standard input is closed.
func (a *app) runServe(s *serveCommand, args []string) error {
	if s.write && s.root == "" {
		return usageError{"--write needs --root: the folder that may be written to"}
	}
	if s.drain < 0 {
		return usageError{"--drain is negative"}
	}
	addr := "tcp://127.0.0.1:0"
	var err error
	if len(args) == 1 {
		if addr, err = parseScheme(args[0]); err != nil {
			return err
		}
	}
	n := &s.network
	cfg, err := n.newConfig(addr)
	if err != nil {
		return err
	}
	cfg.Reflect = true
	var page debug.Page
	if s.debug != "" {
		cfg.Observe = page.Observe
	}
	ownWorkers := n.handlers == "dispatch" && s.root == "" // use the workers of package bench instead of a node's
	switch n.handlers {
	case "inline", "typed":
	case "dispatch":
		if ownWorkers {
			w := bench.NewWorkers()
			defer w.End()
			cfg.Dispatch = w.Dispatch
		}
	default:
		return usageError{fmt.Sprintf("--handlers is %q, want inline, dispatch or typed", n.handlers)}
	}
	var class *hg.Class
	var run func() error
	var shutdown func(context.Context) error
	if !ownWorkers {
		node, err := qs.Open(addr, qs.Config{HG: cfg})
		if err != nil {
			return show.Reword(err, addressErrorText(err))
		}
		defer node.Close()
		bench.RegisterTyped(node)
		streamCount.Handle(node, serveCount)
		if s.root != "" {
			served, err := files.Serve(node, s.root, s.write)
			if err != nil {
				return err
			}
			defer served.Close()
		}
		class, run = node.HG().Class(), func() error { return node.Serve(context.Background()) }
		shutdown = node.Shutdown
	} else {
		if class, err = hg.Open(addr, cfg); err != nil {
			return show.Reword(err, addressErrorText(err))
		}
		hctx, err := class.NewContext()
		if err != nil {
			return err
		}
		shutdown = class.Shutdown
		run = func() error {
			for hctx.Progress(-1) == nil {
				hctx.Trigger(0)
			}
			return nil
		}
	}
	if err := bench.Register(class, n.handlers == "inline"); err != nil {
		return err
	}
	if err := serveExamples(class); err != nil {
		return err
	}
	if err := class.ServeGauges(); err != nil {
		return err
	}
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	bench.Burden(n.busy)
	report := serveReport{Address: class.Addr().String()}
	if s.debug != "" {
		page.Show(class)
		page.Publish("quicksilver")
		url, end, err := serveDebug(&page, s.debug)
		if err != nil {
			return err
		}
		defer end()
		report.DebugPage = url
	}
	err = a.printResult(report, func(out io.Writer) {
		fmt.Fprintln(out, report.Address)
		if report.DebugPage != "" {
			fmt.Fprintf(out, "debug page at %s\n", report.DebugPage)
		}
	})
	if err != nil {
		return errors.Join(err, class.Close())
	}
	ctx, stop := a.untilSignal()
	defer stop()
	if s.child { // the parent process is done or has exited
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			_ = class.Close()
		}()
	}
	drained := make(chan error, 1)
	kept := context.AfterFunc(ctx, func() { drained <- a.drainClass(class, shutdown, s.drain) })
	err = run()
	if !kept() {
		err = errors.Join(err, <-drained)
	}
	return err
}

// drainClass shuts down class and waits at most the duration within for its requests to complete. If it had to
// interrupt requests, the error lists them.
func (a *app) drainClass(class *hg.Class, shutdown func(context.Context) error, within time.Duration) error {
	active := int64(0)
	for _, g := range class.Gauges() {
		active += g.Active + g.Streams
	}
	if active > 0 && within > 0 {
		a.printNote("serve", fmt.Sprintf("%s under way: waits up to %v for the end", countText(int(active), "request"), within))
	}
	ctx, stop := context.WithTimeout(context.Background(), within)
	defer stop()
	left, ok := errors.AsType[*hg.ShutdownError](shutdown(ctx))
	if !ok {
		return nil
	}
	broken := left.Handlers + left.Responses + left.Transfers + left.Leases
	if broken+left.Streams == 0 { // the only remaining items are data that a lost peer has not acknowledged
		return nil
	}
	all := countText(broken, "request")
	switch {
	case broken == 0:
		all = countText(left.Streams, "stream")
	case left.Streams > 0:
		all += " and " + countText(left.Streams, "stream")
	}
	what := ""
	if len(left.Open) > 0 {
		what = ": " + strings.Join(left.Open, "; ")
	}
	return brokenPromiseError{fmt.Errorf("canceled after %v: %s%s", within, all, what)}
}
