// Command tracing records one trace across three processes and prints its spans. The client calls front, which calls
// back. The span of each handler is a child of the caller's span.
//
// To send the spans to a collector, use an exporter of go.opentelemetry.io/otel/exporters in place of the printer.
package main

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	qsotel "github.com/quicksilver-rpc/quicksilver/contrib/otel"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	Page  = qs.Define[string, string]("shop/page")
	Price = qs.Define[string, int]("shop/price")
)

func main() {
	ctx := context.Background()
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	// One configuration for both sides of a node: a span for each call, and for each handler.
	cfg := qsotel.Config{TracerProvider: provider}
	client, err := qsotel.Client(cfg)
	check(err)
	server, err := qsotel.Server(cfg)
	check(err)
	traced := qs.Config{ClientInterceptors: []qs.Interceptor{client}, ServerInterceptors: []qs.Interceptor{server}}

	back, stop := serve(traced, func(n *qs.Node) {
		Price.Handle(n, func(context.Context, string) (int, error) { return 7, nil })
	})
	defer stop()
	front, stop := serve(traced, func(n *qs.Node) {
		prices, err := n.Peer(ctx, back)
		check(err)
		Page.Handle(n, func(ctx context.Context, item string) (string, error) {
			price, err := Price.Call(ctx, prices, item) // ctx carries the trace on
			return fmt.Sprintf("%s costs %d", item, price), err
		})
	})
	defer stop()

	node, err := qs.Open("tcp://", traced)
	check(err)
	defer node.Close()
	to, err := node.Peer(ctx, front)
	check(err)
	page, err := Page.Call(ctx, to, "bread")
	fmt.Println(page, err)
	check(provider.ForceFlush(ctx))
	printTree(spans.GetSpans())
}

// printTree prints the spans of one trace, each below the one that it belongs to.
func printTree(spans tracetest.SpanStubs) {
	below := map[string]tracetest.SpanStubs{}
	for _, s := range spans {
		id := s.Parent.SpanID().String()
		below[id] = append(below[id], s)
	}
	var print func(parent, indent string)
	print = func(parent, indent string) {
		for _, s := range below[parent] {
			fmt.Printf("%s%s %s\n", indent, s.SpanKind, s.Name)
			print(s.SpanContext.SpanID().String(), indent+"  ")
		}
	}
	print("0000000000000000", "")
}

// serve opens a node at a free port and serves until stop is called.
func serve(cfg qs.Config, register func(*qs.Node)) (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", cfg)
	check(err)
	register(node)
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
