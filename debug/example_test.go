package debug_test

import (
	"log"
	"net/http"
	"time"

	"github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/debug"
)

// A server with a page at http://localhost:6060/, and probes at /healthz and /readyz.
func Example() {
	var page debug.Page
	var cfg quicksilver.Config
	page.Attach(&cfg)
	node, err := quicksilver.Open("tcp://:7000", cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	web := &http.Server{Addr: "localhost:6060", Handler: &page, ReadHeaderTimeout: 10 * time.Second}
	go func() { log.Print(web.ListenAndServe()) }()
}
