package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/debug"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

const serveUsage = `serve [flags] [ADDRESS]

The target of qs perf, ping, cp and ger. Without ADDRESS it listens at 127.0.0.1, at a port that the system chooses; its
first line says where. It ends with Ctrl-C.
`

// runServe is a target until it is told to end by a signal, or by the end of its input if -child is set.
func runServe(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(serveUsage, flag.ContinueOnError)
	var n network
	n.flags(fs)
	child := fs.Bool("child", false, "end with the standard input")
	root := fs.String("root", "", "`folder` whose files qs cp may read; without it none")
	write := fs.Bool("write", false, "let qs cp put files there, too: anybody who can reach the address")
	debugAddr := fs.String("debug", "", "`HOST:PORT` of an HTTP page that shows what goes on here: who can reach it sees peers and names of methods")
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
	cfg, err := n.config()
	if err != nil {
		return err
	}
	cfg.Reflect = true
	var page debug.Page
	if *debugAddr != "" {
		cfg.Observe = page.Observe
	}
	files := &files{write: *write}
	if *root != "" {
		if files.disk, err = openDisk(*root); err != nil {
			return fmt.Errorf("the folder of -root cannot be opened: %w", err)
		}
	}
	switch n.handlers {
	case "inline":
	case "dispatch":
		w := bench.NewWorkers()
		defer w.End()
		cfg.Dispatch = w.Dispatch
	case "typed":
	default:
		return usageError{fmt.Sprintf("-handlers is %q, want inline, dispatch or typed", n.handlers)}
	}
	var (
		class *hg.Class
		node  *quicksilver.Node // with typed handlers
	)
	if n.handlers == "typed" {
		if node, err = quicksilver.Open(addr, quicksilver.Config{HG: cfg}); err == nil {
			defer node.Close()
			class = node.HG().Class()
			bench.TypedEcho.Handle(node, func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
		}
	} else {
		class, err = hg.Open(addr, cfg)
	}
	if err != nil {
		return err
	}
	if err := bench.Register(class); err != nil {
		return err
	}
	if err := files.register(class); err != nil {
		return err
	}
	if err := class.ServeGauges(); err != nil {
		return err
	}
	var hctx *hg.Context
	if node != nil {
		hctx = node.HG()
	} else if hctx, err = class.NewContext(); err != nil {
		return err
	}
	files.attach(hctx)
	defer files.close()
	stopProfile, err := n.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	bench.Burden(n.busy)
	fmt.Fprintln(out, self.Ready+hctx.Self().String())
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
	if node != nil {
		defer context.AfterFunc(ctx, interrupted)()
		return node.Serve(ctx)
	}
	defer context.AfterFunc(ctx, func() {
		_ = class.Close()
		interrupted()
	})()
	for hctx.Progress(-1) == nil {
		hctx.Trigger(0)
	}
	return nil
}
