// Command first is the program of docs/PLUGINS.md. It defines a transport over unix sockets and
// makes a call over it.
package main

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/carrier/streamnet"
)

var unix = streamnet.New(streamnet.Options{
	Scheme: "unix",
	Dial: func(ctx context.Context, name string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", name)
	},
	Listen: func(where string) (net.Listener, string, error) {
		l, err := net.Listen("unix", where)
		return l, where, err
	},
	Verify: func(net.Conn, string) bool { return true }, // the permissions of the directory say who dials
})

func main() {
	server := open(unix, "unix:///tmp/greet.sock")
	go func() {
		for server.Progress(-1) == nil {
			server.Trigger(0)
		}
	}()

	ctx := context.Background()
	client := open(unix, "unix://")
	target, err := client.LookupWait(ctx, "unix:///tmp/greet.sock")
	check(err)
	h, err := client.Create(target, hg.HashName("greet"))
	check(err)
	var answer string
	check(h.Call(ctx, "Ada", &answer))
	fmt.Println(answer)
	h.Close()
	check(client.Class().Shutdown(ctx))
	check(server.Class().Shutdown(ctx))
}

// open opens a class that knows the plugin, and its context.
func open(p carrier.Plugin, addr string) *hg.Context {
	class, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{p}}})
	check(err)
	_, err = class.Register("greet", func(r hg.Request) error {
		var name string
		if err := r.Input(&name); err != nil {
			return err
		}
		return r.Respond("hello, "+name, nil)
	})
	check(err)
	hctx, err := class.NewContext()
	check(err)
	return hctx
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
