package debug_test

import (
	"log"
	"net/http"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// A server with a page at http://localhost:6060/, and probes at /healthz and /readyz.
func Example() {
	node, err := qs.Open("tcp://:7000", qs.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	web := &http.Server{Addr: "localhost:6060", Handler: debug.New(node), ReadHeaderTimeout: 10 * time.Second}
	go func() { log.Print(web.ListenAndServe()) }()
}
