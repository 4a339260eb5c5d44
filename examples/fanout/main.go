// Command fanout calls many servers at once. It collects the partial answers of all servers, and it uses the first
// complete answer of any of them.
//
//	        ┌─► shard 0 ─► lines with the word ─┐
//	client ─┼─► shard 1 ─► …                    ├─► all, with an error for each that failed
//	        └─► shard 2 ─► …                   ─┘
package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var Search = qs.Define[string, []string]("search", qs.Idempotent())

var shards = [][]string{
	{"mercury is the first planet", "venus is the second"},
	{"earth is the third planet", "mars is the fourth planet"},
	{"jupiter is the fifth"},
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // for all calls together
	defer cancel()
	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	defer client.Close()

	var peers []qs.Peer
	for _, lines := range shards {
		addr, stop := serve(lines)
		defer stop()
		peer, err := client.Peer(ctx, addr)
		check(err)
		peers = append(peers, peer)
	}
	gone, stop := serve(nil)
	stop() // simulates a shard that is down
	peer, err := client.Peer(ctx, gone)
	check(err)
	peers = append(peers, peer)

	// Scatter and gather: one call to each, concurrently.
	found, errs := qs.CallAll(ctx, peers, Search, "planet")
	for i := range peers {
		if errs[i] != nil {
			fmt.Printf("shard %d: unreachable, the request %v\n", i, qs.FateOf(errs[i]))
			continue
		}
		fmt.Printf("shard %d: %q\n", i, found[i])
	}
	fmt.Println("together:", len(slices.Concat(found...)), "lines")

	// The first answer is sufficient. The other calls are abandoned, which cancels the contexts of their handlers.
	_, first, err := qs.WaitFirst(ctx, Search.Go(ctx, peers[3], "jupiter"), Search.Go(ctx, peers[2], "jupiter"))
	fmt.Println("first:", first, err)
}

// serve opens a node on a free port and serves until stop is called.
func serve(lines []string) (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	Search.Handle(node, func(_ context.Context, word string) (found []string, err error) {
		for _, line := range lines {
			if strings.Contains(line, word) {
				found = append(found, line)
			}
		}
		return found, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	return node.Addr().String(), func() {
		cancel()
		check(<-ended)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
