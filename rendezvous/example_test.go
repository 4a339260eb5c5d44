package rendezvous_test

import (
	"context"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// One process, because no launcher has started this test. With "qs run -n 4 -- program" there are four.
func ExampleStart() {
	ctx := context.Background()
	m, err := rendezvous.Start(ctx, rendezvous.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	world, err := m.Exchange(ctx, rendezvous.Info{Addr: "tcp://127.0.0.1:7000", GER: 32})
	if err != nil {
		fmt.Println(err)
		return
	}
	for rank, peer := range world.Members {
		fmt.Printf("rank %d of %d is at %s\n", rank, m.Size(), peer.Addr)
	}
	fmt.Println("each guarantees at least", world.GER, "envelopes")
	if err := m.Leave(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// rank 0 of 1 is at tcp://127.0.0.1:7000
	// each guarantees at least 32 envelopes
}
