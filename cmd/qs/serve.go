package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

const serveUsage = `serve [flags] [ADDRESS]

The target of qs perf, ping, cp and ger. Without ADDRESS it listens on 127.0.0.1, on a port that the system chooses; its
first line is the address. Stop it with Ctrl-C.
`

// runServe is a target until it is told to end by a signal, or by the end of its input if -child is set.
func runServe(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(serveUsage, flag.ContinueOnError)
	var n network
	n.flags(fs)
	child := fs.Bool("child", false, "exit at the end of the standard input")
	root := fs.String("root", "", "`folder` that qs cp may read")
	write := fs.Bool("write", false, "let qs cp write there, too: everyone who can reach the address")
	debugAddr := fs.String("debug", "", "`HOST:PORT` of an HTTP page with the state of this process: everyone who can reach it sees peers and names of methods")
	if err := parse(fs, args, 0, 1); err != nil {
		return err
	}
	if *write && *root == "" {
		return usageError{"-write needs -root: the folder that may be written to"}
	}
	addr := "tcp://127.0.0.1:0"
	if fs.NArg() == 1 {
		addr = fs.Arg(0)
	}
	cfg, err := n.config(addr)
	if err != nil {
		return err
	}
	cfg.Reflect = true
	var page debug.Page
	if *debugAddr != "" {
		cfg.Observe = page.Observe
	}
	typed := n.handlers == "typed" || *root != ""
	switch n.handlers {
	case "inline", "typed":
	case "dispatch":
		if !typed {
			w := bench.NewWorkers()
			defer w.End()
			cfg.Dispatch = w.Dispatch
		}
	default:
		return usageError{fmt.Sprintf("-handlers is %q, want inline, dispatch or typed", n.handlers)}
	}
	var class *hg.Class
	var run func() error
	if typed {
		node, err := qs.Open(addr, qs.Config{HG: cfg})
		if err != nil {
			return err
		}
		defer node.Close()
		bench.TypedEcho.Handle(node, func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
		if *root != "" {
			served, err := files.Serve(node, *root, *write)
			if err != nil {
				return err
			}
			defer served.Close()
		}
		class, run = node.HG().Class(), func() error { return node.Serve(context.Background()) }
	} else {
		if class, err = hg.Open(addr, cfg); err != nil {
			return err
		}
		hctx, err := class.NewContext()
		if err != nil {
			return err
		}
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
	if err := class.ServeGauges(); err != nil {
		return err
	}
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	bench.Burden(n.busy)
	fmt.Fprintln(out, self.Ready+class.Addr().String())
	if *debugAddr != "" {
		page.Show(class)
		page.Publish("quicksilver")
		end, err := serveDebug(&page, *debugAddr, out)
		if err != nil {
			return err
		}
		defer end()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *child {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	defer context.AfterFunc(ctx, func() {
		_ = class.Close()
		interrupted()
	})()
	return run()
}
