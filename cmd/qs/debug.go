package main

import (
	"expvar"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// serveDebug shows page at addr, and says where on out. stop ends it, and waits for nobody.
func serveDebug(page *debug.Page, addr string, out io.Writer) (stop func(), err error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("-debug %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.Handle("/debug/vars", expvar.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(lis)
	}()
	fmt.Fprintf(out, "debug page at http://%s/\n", lis.Addr())
	return func() {
		_ = server.Close()
		<-ended
	}, nil
}
