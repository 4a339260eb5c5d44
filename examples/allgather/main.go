// Command allgather is one of several processes that start together and fetch a part from each other.
//
//	go build ./examples/allgather
//	qs run -n 4 -- ./allgather                                       four of them, on this machine
//	srun -n 64 ./allgather -listen tcp://$(hostname -i):0            under Slurm, without another program
//
// They find each other by package rendezvous: each tells the others its address, and learns theirs. Then each calls all
// others, until all have everything. If one is lost, those who notice tell the rest, and all end with an error that names it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "allgather:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) (err error) {
	fs := flag.NewFlagSet("allgather", flag.ExitOnError)
	listen := fs.String("listen", "tcp://127.0.0.1:0", "`address` of this process; its scheme is the transport")
	port := fs.Int("rendezvous", rendezvous.DefaultPort, "`port` where rank 0 serves under Slurm")
	peerTimeout := fs.Duration("peer-timeout", 5*time.Second, "`time` of silence after which a process is lost")
	atLeast := fs.Duration("for", 0, "go on fetching for so much `time`")
	fs.Parse(args)
	ctx, stop := context.WithTimeout(context.Background(), *atLeast+time.Minute)
	defer stop()

	class, err := hg.Open(*listen, hg.Config{NA: hg.NetConfig{PeerTimeout: *peerTimeout}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, class.Shutdown(ctx)) }()
	g := &gather{ctx: ctx, lost: -1}
	if err := g.register(class); err != nil {
		return err
	}

	m, err := rendezvous.Start(ctx, rendezvous.Options{Port: *port})
	if err != nil {
		return err
	}
	defer m.Close()
	world, err := m.Exchange(ctx, rendezvous.Info{Addr: g.hctx.Self().String()})
	if err != nil {
		return err
	}
	g.rank = m.Rank()
	fmt.Fprintf(out, "rank %d of %d has started\n", g.rank, m.Size())
	defer g.close()
	if err := g.connect(world); err != nil {
		return err
	}
	if err := g.work(*atLeast); err != nil {
		return err
	}
	fmt.Fprintf(out, "rank %d has %d parts: %s\n", g.rank, len(g.parts), g.parts)
	return m.Leave()
}
