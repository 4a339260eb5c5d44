package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// What the README and the pages show is here, or in the examples, so that it compiles and runs.

var Greet = qs.Define[string, string]("greet")

func hello(_ context.Context, name string) (string, error) {
	if name == "" {
		return "", qs.Errorf(qs.ErrNotFound, "nobody to greet")
	}
	return "hello, " + name, nil
}

type Upload struct{ Data qs.Source } // what the server may read during the call
type Download struct{ Room qs.Sink } // what it may fill

var (
	Put = qs.Define[Upload, int64]("put")
	Get = qs.Define[Download, int64]("get")
)

func served(t *testing.T, register func(node *qs.Node)) qs.Peer {
	return servedWith(t, qs.Config{}, register)
}

func servedWith(t *testing.T, cfg qs.Config, register func(node *qs.Node)) qs.Peer {
	node, err := qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	register(node)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	server, err := client.Peer(ctx, node.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		stop()
		require.NoError(t, <-ended)
	})
	return server
}

// TestLent checks a Source and a Sink.
func TestLent(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "a"))
	require.NoError(t, err)
	defer file.Close()
	server := served(t, func(node *qs.Node) {
		Put.Handle(node, func(ctx context.Context, in Upload) (int64, error) {
			return io.Copy(file, in.Data.Reader(ctx)) // pulled, at the server's pace
		})
		Get.Handle(node, func(ctx context.Context, in Download) (int64, error) {
			return in.Room.SendFile(ctx, file) // pushed, from the page cache
		})
	})
	ctx := context.Background()
	data, room := bytes.Repeat([]byte("0123456789"), 100_000), make([]byte, 1_000_000)

	n, err := Put.Call(ctx, server, Upload{qs.Bytes(data)}) // or File, or Reader

	require.NoError(t, err)
	require.EqualValues(t, len(data), n)
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)

	n, err = Get.Call(ctx, server, Download{qs.Buffer(room)}) // or FileBuffer, or Writer

	require.NoError(t, err)
	require.EqualValues(t, len(data), n)
	require.Equal(t, data, room)
}

// TestWhatWentWrong checks the facts in an error.
func TestWhatWentWrong(t *testing.T) {
	server := served(t, func(node *qs.Node) { Greet.Handle(node, hello) })
	call := func(ctx context.Context, server qs.Peer, name string) string {
		switch answer, err := Greet.Call(ctx, server, name); {
		case err == nil:
			return answer
		case errors.Is(err, qs.ErrNotFound): // the handler returned qs.Errorf(qs.ErrNotFound, …)
			return "nobody"
		case qs.FateOf(err) == qs.NotRun: // nothing has happened: call again, here or elsewhere
			return "again"
		default: // qs.MaybeRan: again only if a second time does no harm
			return "perhaps"
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	require.Equal(t, "hello, Ada", call(ctx, server, "Ada"))
	require.Equal(t, "nobody", call(ctx, server, ""))
	cancel()
	require.Equal(t, "again", call(ctx, server, "Ada"))
}

// TestGreetOnABadNetwork checks a service of a program in the simulator.
func TestGreetOnABadNetwork(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())

	w := sim.NewWorld(sim.Config{Seed: 7, Faults: sim.Faults{Loss: 0.05, Pause: 0.01, PauseFor: time.Second}})
	defer w.Close()
	cfg := qs.Config{HG: hg.Config{NA: hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}}}
	w.Go("server", func() {
		node, _ := qs.Open("sim://server", cfg)
		Greet.Handle(node, hello)
		_ = node.Serve(ctx)
	})
	w.Go("client", func() {
		defer stop()
		node, _ := qs.Open("sim://", cfg)
		defer node.Close()
		server, _ := node.Peer(ctx, "sim://server")
		_, err := Greet.Call(ctx, server, "Ada")
		assert.NoError(t, err)
	})
	require.NoError(t, w.Run(time.Hour)) // of virtual time, which takes a moment
}

// TestAround checks an interceptor, metadata, and an authorizer.
func TestAround(t *testing.T) {
	cfg := qs.Config{
		ServerInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			tenant, _ := c.Metadata.Get("tenant") // of qs.WithMetadata(ctx, "tenant", "a") at the caller
			err := next(ctx)
			slog.Info("served", "method", c.Method, "tenant", tenant, "caller", c.Caller().Name, "error", err)
			return err
		}},
		Authorize: func(_ context.Context, c *qs.Call) error { // before the input is decoded; an error, or a panic, denies
			if c.Method == "hg/health" || strings.HasPrefix(c.Caller().Name, "spiffe://prod/shop/") {
				return nil
			}
			return qs.Errorf(qs.ErrPermission, "%q is not of the shop", c.Caller().Name)
		},
	}
	server := servedWith(t, cfg, func(node *qs.Node) { Greet.Handle(node, hello) })
	_, err := Greet.Call(context.Background(), server, "Ada")
	require.ErrorIs(t, err, qs.ErrPermission)
	require.ErrorContains(t, err, `"" is not of the shop`)
	require.Equal(t, qs.NotRun, qs.FateOf(err))

	var output bytes.Buffer
	logger := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&output, nil)))
	defer slog.SetDefault(logger)
	cfg.Authorize = nil
	server = servedWith(t, cfg, func(node *qs.Node) { Greet.Handle(node, hello) })
	_, err = Greet.Call(qs.WithMetadata(context.Background(), "tenant", "a"), server, "Ada")
	require.NoError(t, err)
	require.Contains(t, output.String(), `method=greet tenant=a caller="" error=<nil>`)
}

// TestSpread checks calls that are spread over the addresses of one name.
func TestSpread(t *testing.T) {
	node, err := qs.Open("tcp://", qs.Config{TCP: tcp.Options{Resolver: anyHost{}}})
	require.NoError(t, err)
	defer node.Close()
	ctx := context.Background()

	server, err := node.PeerWith(ctx, qs.PeerOptions{
		Balancer:       qs.LeastLoaded(),
		HealthInterval: 200 * time.Millisecond,
	}, "tcp://kv.default.svc:9000")

	require.NoError(t, err)
	require.Equal(t, "tcp://kv.default.svc:9000", server.String())
}

// anyHost is a resolver that resolves every host.
type anyHost struct{}

func (anyHost) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

type Row struct{ A, B int }

var Rows = qs.DefineStream[string, Row]("rows")

// TestRows checks a stream.
func TestRows(t *testing.T) {
	server := served(t, func(node *qs.Node) {
		Rows.Handle(node, func(_ context.Context, query string, send func(Row) error) error {
			for i := range len(query) {
				if err := send(Row{i, 1}); err != nil {
					return err // the caller has left its loop, or its time is up
				}
			}
			return nil
		})
	})
	ctx, sum := context.Background(), Row{}
	for row, err := range Rows.Call(ctx, server, "all") {
		require.NoError(t, err)
		sum.A, sum.B = sum.A+row.A, sum.B+row.B
	}
	require.Equal(t, Row{3, 3}, sum)
}

// TestPage checks a debug page.
func TestPage(t *testing.T) {
	node, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer node.Close()
	page := debug.New(node) // peers, gauges, and what is under way
	web := httptest.NewServer(page)
	defer web.Close()
	answer, err := http.Get(web.URL + "/healthz")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

var block = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestBlocks checks that the code in the pages is compiled. The first block of README.md is a
// program of its own, which TestFirstProgram builds; whole programs in other pages are compared by
// TestPrograms.
func TestBlocks(t *testing.T) {
	code := "" // of the examples, without indentation
	for _, pattern := range []string{"qs/*_test.go", "qs/*/*_test.go", "hg/codec/*_test.go", "examples/*/*.go", "contrib/*/*.go", "contrib/bench/*/*.go", "contrib/*/*/*/*.go", "examples/plugin/*/*.go", "mercury/*_test.go", "internal/test/proctest/memory_test.go"} {
		code += unindent(sources(t, ".", pattern))
	}
	shown := 0
	for page, text := range pages(t) {
		blocks := block.FindAllStringSubmatch(program.ReplaceAllString(text, ""), -1)
		if page == "README.md" {
			blocks = blocks[1:]
		}
		for _, m := range blocks {
			for part := range strings.SplitSeq(m[1], "\n\n") {
				assert.True(t, strings.Contains(code, unindent(part)), "%s shows what is nowhere:\n%s", page, part)
				shown++
			}
		}
	}
	require.Greater(t, shown, 10)
}

// unindent takes the indentation off.
func unindent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}
