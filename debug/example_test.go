package debug_test

import (
	"log"
	"net/http"

	"github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/debug"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A server with a page at http://localhost:6060/.
func Example() {
	var page debug.Page
	node, err := quicksilver.Open("tcp://:7000", quicksilver.Config{HG: hg.Config{Observe: page.Observe}})
	if err != nil {
		log.Fatal(err)
	}
	page.Show(node.HG().Class())
	go func() { log.Print(http.ListenAndServe("localhost:6060", &page)) }()
}
