package sim_test

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// Two coroutines in a world of virtual time: the same seed gives the same run.
func ExampleWorld() {
	hashes := map[uint64]bool{}
	for range 2 {
		w := sim.NewWorld(sim.Config{Seed: 7, Faults: sim.Faults{Jitter: time.Millisecond, Loss: 0.1}})
		var server *na.Context
		w.Go("server", func() {
			class, err := na.Open("sim://server", na.Config{Plugins: []na.Plugin{w.Plugin()}})
			if err != nil {
				panic(err)
			}
			if server, err = class.NewContext(); err != nil {
				panic(err)
			}
			over := false
			recv := server.NewOp(func(_ *na.Op, r na.Result) { over = true; fmt.Printf("%s\n", r.Envelope.Data) })
			if err := server.RecvUnexpected(recv); err != nil {
				panic(err)
			}
			for !over {
				_ = server.Progress(-1)
				server.Trigger(0)
			}
			w.Sleep(time.Second)
		})
		w.Go("client", func() {
			w.Sleep(time.Millisecond)
			class, err := na.Open("sim://client", na.Config{Plugins: []na.Plugin{w.Plugin()}})
			if err != nil {
				panic(err)
			}
			client, err := class.NewContext()
			if err != nil {
				panic(err)
			}
			to, err := na.ParseAddr("sim://server")
			if err != nil {
				panic(err)
			}
			over := false
			send := client.NewOp(func(*na.Op, na.Result) { over = true })
			if err := client.SendUnexpected(send, to, 1, []byte("hello")); err != nil {
				panic(err)
			}
			for !over {
				_ = client.Progress(-1)
				client.Trigger(0)
			}
		})
		fmt.Println(w.Run(time.Minute)) // of virtual time
		hashes[w.Hash()] = true
		w.Close()
	}
	fmt.Println(len(hashes), "history")
	// Output:
	// hello
	// <nil>
	// hello
	// <nil>
	// 1 history
}
