// Command metrics is a service that exports metrics to Prometheus. It calls itself a few times, then requests its own
// metrics over HTTP and prints some of them.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	qsprom "github.com/quicksilver-rpc/quicksilver/contrib/prometheus"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var Half = qs.Define[int, int]("math/half")

func main() {
	ctx, stop := context.WithCancel(context.Background())
	metrics := qsprom.New()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{HG: hg.Config{Observe: metrics.Observe}}) // counts and durations
	check(err)
	metrics.Show(node.HG().Class()) // gauges
	Half.Handle(node, func(_ context.Context, n int) (int, error) {
		if n%2 != 0 {
			return 0, qs.Errorf(qs.ErrBadInput, "%d is odd", n)
		}
		return n / 2, nil
	})
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a service of yours has a port here that Prometheus knows
	check(err)
	web := &http.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()

	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	to, err := client.Peer(ctx, node.Addr().String())
	check(err)
	for n := range 5 {
		_, _ = Half.Call(ctx, to, n)
	}
	check(client.Close())
	stop()
	check(<-ended) // so that all calls are counted

	printCounts("http://" + listener.Addr().String() + "/metrics")
	check(web.Close())
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		check(err)
	}
}

// printCounts prints how many requests of each method have ended.
func printCounts(url string) {
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Get(url)
	check(err)
	defer answer.Body.Close()
	counts := regexp.MustCompile(`^quicksilver_ended_total.*math/half.*`)
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if counts.Match(lines.Bytes()) {
			fmt.Println(lines.Text())
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
