// Command members lists the members of a group. Each process joins the group, calls all other members, and logs their
// state changes.
//
//	qs run -n 5 -- members                                        all together
//	members -name late -seeds 127.0.0.1:7001                      one more, by the gossip address of another one
//
// Each process prints the group's events, calls Hello at each member, and leaves the group on SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// Hello is the method that returns the name of the called process.
var Hello = qs.Define[string, string]("members/hello", qs.Idempotent())

func main() {
	name := flag.String("name", "", "`name` of this process; empty: by the rank that the launcher gave")
	listen := flag.String("listen", "tcp://127.0.0.1:0", "`address` to serve at")
	seeds := flag.String("seeds", "", "`host:port,...` of members; empty: those that a launcher started together")
	wait := flag.Duration("for", 0, "how `long` to stay once all were called; 0: until SIGTERM")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *listen, *seeds, *wait); err != nil {
		log.Fatal(err)
	}
}

// run runs one member until ctx is done or wait has elapsed.
func run(ctx context.Context, name, listen, seeds string, wait time.Duration) error {
	o, size := group.Options{Name: name, Serves: []string{"members"}}, 1
	if seeds != "" {
		o.Seeds = strings.Split(seeds, ",")
	} else {
		m, err := rendezvous.Start(ctx, rendezvous.Options{})
		if err != nil {
			return err
		}
		defer m.Close()
		if name == "" {
			o.Name = fmt.Sprint("member-", m.Rank())
		}
		o.Rendezvous, size = m, m.Size()
	}
	node, err := qs.Open(listen, qs.Config{})
	if err != nil {
		return err
	}
	Hello.Handle(node, func(_ context.Context, from string) (string, error) { return o.Name, nil })
	serving, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- node.Serve(serving) }()
	err = stay(ctx, node, o, size, wait)
	end()
	return errors.Join(err, <-served)
}

// stay joins the group, logs its events, and calls each member that joins.
func stay(ctx context.Context, node *qs.Node, o group.Options, size int, wait time.Duration) error {
	g, err := group.Join(ctx, node, o)
	if err != nil {
		return err
	}
	defer func() {
		bye, stop := context.WithTimeout(context.Background(), 2*time.Second)
		defer stop()
		_ = g.Leave(bye)
	}()
	if o.Rendezvous != nil {
		_ = o.Rendezvous.Leave()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	called := 0
	for e := range g.Events(ctx) {
		log.Printf("%s: %s %v, epoch %d, %d members", o.Name, e.Member.Name, e.Kind, e.Epoch, len(g.View().Members))
		if e.Kind != group.Joined {
			continue
		}
		peer, err := node.Peer(ctx, e.Member.Addr)
		if err == nil {
			_, err = Hello.Call(ctx, peer, o.Name)
		}
		if err != nil {
			log.Printf("%s: %s does not answer: %v", o.Name, e.Member.Name, err)
			continue
		}
		if called++; called == size && wait > 0 {
			log.Printf("%s: called all %d", o.Name, size)
			timer := time.AfterFunc(wait, stop)
			defer timer.Stop()
		}
	}
	return nil
}
