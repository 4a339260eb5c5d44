// Command streams has a method of each kind of stream: items from the server, items from the caller, and items in both directions.
//
//	Stream   in ──────────► items ◄─ ─ ─     a list, a subscription
//	Upload   in, items ───► output           rows to be loaded
//	Duplex   in, items ◄──► items            a session
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	Count = qs.DefineStream[int, int]("count")              // In, Item
	Sum   = qs.DefineUpload[string, int, string]("sum")     // In, Up, Out
	Shout = qs.DefineDuplex[string, string, string]("talk") // In, Up, Down
)

func main() {
	ctx := context.Background()
	server, stop := serve()
	defer stop()
	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	defer client.Close()
	to, err := client.Peer(ctx, server)
	check(err)

	// Items from the server. A break ends the handler's context; a slow loop makes its send wait.
	for n, err := range Count.Call(ctx, to, 1) {
		check(err)
		fmt.Println("count:", n)
		if n == 3 {
			break
		}
	}

	// Items from the caller.
	upload := Sum.Call(ctx, to, "total")
	defer upload.Close() // does nothing if the call has ended
	for n := range 5 {
		check(upload.Send(n))
	}
	total, err := upload.CloseAndReceive()
	fmt.Println("sum:", total, err)

	// Items in both directions, each at its own pace.
	talk := Shout.Call(ctx, to, "!")
	defer talk.Close()
	for _, word := range []string{"hello", "goodbye"} {
		check(talk.Send(word))
		answer, err := talk.Receive()
		fmt.Println("talk:", answer, err)
	}
	talk.CloseSend()
	_, err = talk.Receive()
	fmt.Println("talk: the handler has returned:", errors.Is(err, io.EOF))
}

// serve opens a node at a free port and serves until stop is called.
func serve() (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	Count.Handle(node, func(ctx context.Context, from int, send func(int) error) error {
		for n := from; ; n++ {
			if err := send(n); err != nil {
				return err // the caller has left its loop, or its time is up
			}
		}
	})
	Sum.Handle(node, func(ctx context.Context, name string, items *qs.Receiver[int]) (string, error) {
		sum := 0
		for n, err := range items.All() {
			if err != nil {
				return "", err // the caller has given up
			}
			sum += n
		}
		return fmt.Sprintf("%s %d", name, sum), nil
	})
	Shout.Handle(node, func(ctx context.Context, mark string, s *qs.DuplexServer[string, string]) error {
		for word, err := range s.All() {
			if err != nil {
				return err
			}
			if err := s.Send(strings.ToUpper(word) + mark); err != nil {
				return err
			}
		}
		return nil
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
