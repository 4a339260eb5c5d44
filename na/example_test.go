package na_test

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// Example sends a message and its answer. A program imports plugins/all instead of naming its
// plugins in the Config.
func Example() {
	cfg := na.Config{Plugins: []carrier.Plugin{tcp.New(tcp.Options{})}}
	target, origin := open("tcp://127.0.0.1:0", cfg), open("tcp://", cfg)
	defer origin.Class().Close()
	defer target.Class().Close()

	answered := target.NewOp(func(*na.Op, na.Result) {})
	requests := target.NewOp(func(_ *na.Op, r na.Result) {
		defer r.Envelope.Free()
		check(target.SendExpected(answered, r.Addr, r.Tag, append([]byte("hello, "), r.Envelope.Data...)))
	})
	check(target.RecvUnexpected(requests))

	buf, done := make([]byte, 64), false
	answer := origin.NewOp(func(_ *na.Op, r na.Result) {
		check(r.Err)
		fmt.Println(string(buf[:r.N]))
		done = true
	})
	check(origin.RecvExpected(answer, target.Self(), 1, buf)) // before the request: an answer that finds no receive is dropped
	sent := origin.NewOp(func(_ *na.Op, r na.Result) { check(r.Err) })
	check(origin.SendUnexpected(sent, target.Self(), 1, []byte("Ada")))

	drive(&done, origin, target)
	// Output: hello, Ada
}

// ExampleContext_Put writes into memory that the peer has registered, with no operation of the
// peer. The program transfers the key to the origin, usually in a message.
func ExampleContext_Put() {
	cfg := na.Config{Plugins: []carrier.Plugin{tcp.New(tcp.Options{})}}
	owner, origin := open("tcp://127.0.0.1:0", cfg), open("tcp://", cfg)
	defer origin.Class().Close()
	defer owner.Class().Close()

	memory := []byte("hello, ...")
	region, err := owner.Class().Register(na.WriteOnly, memory)
	check(err)
	key, err := na.DecodeKey(region.Key().Append(nil))
	check(err)

	local, err := origin.Class().NewMem([]byte("Ada"))
	check(err)
	done := false
	put := origin.NewOp(func(_ *na.Op, r na.Result) {
		check(r.Err)
		fmt.Println(r.N, "bytes:", string(memory))
		done = true
	})
	check(origin.Put(put, local, 0, owner.Self(), key, 7, 3))

	drive(&done, origin, owner)
	// Output: 3 bytes: hello, Ada
}

func open(addr string, cfg na.Config) *na.Context {
	class, err := na.Open(addr, cfg)
	check(err)
	c, err := class.NewContext()
	check(err)
	return c
}

// drive turns contexts over until done. One goroutine does it here: while it waits in one context, it drives none of the others.
func drive(done *bool, contexts ...*na.Context) {
	for !*done {
		for _, c := range contexts {
			if err := c.Progress(time.Millisecond); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				panic(err)
			}
			c.Trigger(0)
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
