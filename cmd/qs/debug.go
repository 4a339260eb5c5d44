package main

import (
	"expvar"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// serveDebug serves page at addr and returns its URL. The stop function shuts the server down and
// closes open connections.
func serveDebug(page *debug.Page, addr string) (url string, stop func(), err error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, fmt.Errorf("--debug %s: %w", addr, err)
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
	return fmt.Sprintf("http://%s/", lis.Addr()), func() {
		_ = server.Close()
		<-ended
	}, nil
}
