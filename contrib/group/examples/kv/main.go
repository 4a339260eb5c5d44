// Command kv is a replicated store of keys and values: five processes or more, three copies of each key, and any one of the three may die.
//
//	qs run -n 5 -- kv -dir /tmp/kv -load 10s
//
//	Put ─► versions of 2 owners ─► written and synced at 3, acknowledged by 2      an owner: one file for each key
//	Get ─► 2 owners, a third if one is slow ─► the newest, repaired where it is missing
//	an owner that starts ─► fetches what it lacks ─► ready: only now it counts
//	group ─► who is there: calls to an owner that failed end at once
//
// Where a key lies follows from the names kv-0 to kv-(n-1), which are fixed at the start, and never from a view: that may be wrong.
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	qsprom "github.com/quicksilver-rpc/quicksilver/contrib/prometheus"
	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// A config is the command line.
type config struct {
	name, listen, gossip, web, dir, seeds, key string
	cert, certKey, ca                          string
	size                                       int
	load                                       time.Duration
}

func main() {
	var c config
	c.flags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		log.Fatalf("%s: %v", c.name, err)
	}
}

func (c *config) flags(f *flag.FlagSet) {
	f.StringVar(&c.name, "name", "", "`name` of this owner, kv-0 to kv-(size-1); empty: by the rank that the launcher gave")
	f.IntVar(&c.size, "size", 5, "how many `owners` there are; a launcher knows better. It never changes")
	f.StringVar(&c.listen, "listen", "tcp://127.0.0.1:0", "`address` to serve at")
	f.StringVar(&c.gossip, "gossip", "", "`host:port` for the group; empty: the host of -listen and any port")
	f.StringVar(&c.seeds, "seeds", "", "`host:port,...` of members of the group; empty: those that a launcher started together")
	f.StringVar(&c.key, "key-file", "", "`file` with 32 to 64 hexadecimal digits that encrypt the gossip")
	f.StringVar(&c.web, "web", "127.0.0.1:0", "`host:port` of the debug page, /metrics, /healthz and /readyz")
	f.StringVar(&c.dir, "dir", "kv-data", "`directory` of the files; each owner has one in it")
	f.StringVar(&c.cert, "cert", "", "PEM `file` of the certificate, for TLS")
	f.StringVar(&c.certKey, "cert-key", "", "PEM `file` of its key")
	f.StringVar(&c.ca, "ca", "", "PEM `file` of the authorities that peers' certificates must be of")
	f.DurationVar(&c.load, "load", 0, "how `long` kv-0 writes and reads, checks every answer, and then has all end; 0: serve until SIGTERM")
}

// run is one owner, until ctx ends.
func run(ctx context.Context, c config) error {
	m, err := c.launched(ctx)
	if err != nil {
		return err
	}
	if m != nil {
		defer m.Close()
	}
	tls, err := qs.LoadTLS(c.cert, c.certKey, c.ca)
	if err != nil {
		return err
	}
	store, err := openDir(filepath.Join(c.dir, c.name))
	if err != nil {
		return err
	}
	page, metrics := new(debug.Page), qsprom.New()
	cfg := qs.Config{
		TLS: tls, PeerTimeout: 2 * time.Second, ShutdownTimeout: 8 * time.Second, Inspect: true,
		ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: 2})},
		HG:                 hg.Config{Observe: metrics.Observe},
	}
	page.Attach(&cfg)
	node, err := qs.Open(c.listen, cfg)
	if err != nil {
		return err
	}
	metrics.Show(node.HG().Class())
	s := &Service{node: node, self: c.name, names: namesOf(c.size), store: store}
	node.SetReady(false) // until it is repaired
	s.handle()
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- node.Serve(serving) }()
	err = c.member(ctx, s, m, page, metrics)
	stop() // new calls are refused, and those under way end
	return errors.Join(err, <-served)
}

// launched returns what the launcher says of this process; nil if nobody launched it.
func (c *config) launched(ctx context.Context) (*rendezvous.Member, error) {
	if c.seeds != "" {
		if rank := rankOf(c.name); c.name != "kv-"+rank {
			return nil, fmt.Errorf("-name is %q, want kv-0 to kv-%d", c.name, c.size-1)
		}
		return nil, nil
	}
	m, err := rendezvous.Start(ctx, rendezvous.Options{})
	if err != nil {
		return nil, err
	}
	c.size = m.Size()
	if c.name == "" {
		c.name = fmt.Sprint("kv-", m.Rank())
	}
	return m, nil
}

// member joins the group, has s repaired, and stays until ctx ends, or the load is over.
func (c *config) member(ctx context.Context, s *Service, m *rendezvous.Member, page http.Handler, metrics prometheus.Collector) error {
	web, err := c.serveWeb(page, metrics)
	if err != nil {
		return err
	}
	defer web.Close()
	o := group.Options{Name: c.name, Gossip: c.gossip, Rendezvous: m, Serves: []string{"kv"}, Meta: []byte(web.Addr)}
	if c.seeds != "" {
		o.Seeds = strings.Split(c.seeds, ",")
	}
	if c.key != "" {
		text, err := os.ReadFile(c.key)
		if err == nil {
			o.Key, err = hex.DecodeString(strings.TrimSpace(string(text)))
		}
		if err != nil {
			return fmt.Errorf("-key-file: %w", err)
		}
	}
	g, err := group.Join(ctx, s.node, o)
	if err != nil {
		return err
	}
	defer func() {
		bye, stop := context.WithTimeout(context.Background(), 2*time.Second)
		defer stop()
		_ = g.Leave(bye)
	}()
	if m != nil {
		_ = m.Leave()
	}
	defer g.OnEvent(func(e group.Event) { log.Printf("%s: %s %v", c.name, e.Member.Name, e.Kind) })()
	all := &peers{node: s.node, resolver: g, all: map[string]qs.Peer{}}
	if err := s.repair(ctx, all); err != nil {
		return err
	}
	log.Printf("%s: ready at %v, page http://%s, %d records repaired", c.name, s.node.Addr(), web.Addr, s.repairs.Load())
	return c.stay(ctx, s, g, all)
}

// stay returns when the process is to end.
func (c *config) stay(ctx context.Context, s *Service, g *group.Group, all *peers) error {
	switch {
	case c.load == 0:
		<-ctx.Done()
	case c.name == "kv-0":
		return load(ctx, s.node, s.names, all, c.load)
	default:
		for e := range g.Events(ctx) {
			if e.Member.Name == "kv-0" && (e.Kind == group.Leaves || e.Kind == group.Fails) {
				return nil
			}
		}
	}
	return nil
}

// serveWeb serves what operators look at.
func (c *config) serveWeb(page http.Handler, metrics prometheus.Collector) (*http.Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	mux := http.NewServeMux()
	mux.Handle("/", page) // and /healthz, /readyz
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	l, err := net.Listen("tcp", c.web)
	if err != nil {
		return nil, err
	}
	web := &http.Server{Addr: l.Addr().String(), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go web.Serve(l)
	return web, nil
}

// load writes and reads for some time with 8 workers, then reads every key.
func load(ctx context.Context, node *qs.Node, names []string, all *peers, d time.Duration) error {
	run, stop := context.WithTimeout(ctx, d)
	defer stop()
	var tasks sync.WaitGroup
	workers := make([]*worker, 8)
	wrong := make([]error, len(workers))
	session := fmt.Sprintf("%x", time.Now().UnixNano()) // what another load has written is none of its business
	for i := range workers {
		name := fmt.Sprint(session, "/", i)
		w := &worker{c: newClient(node, names, all, name), name: name, keys: 50, large: 1 << 20, timeout: 5 * time.Second,
			rand: rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano()))), ledger: ledger{may: map[string][]string{}}}
		workers[i] = w
		tasks.Go(func() {
			for run.Err() == nil && wrong[i] == nil {
				wrong[i] = w.step(ctx)
			}
			if wrong[i] == nil {
				wrong[i] = w.audit(ctx)
			}
		})
	}
	tasks.Wait()
	var sum ledger
	for _, w := range workers {
		sum.puts, sum.gets, sum.errs = sum.puts+w.ledger.puts, sum.gets+w.ledger.gets, sum.errs+w.ledger.errs
	}
	log.Printf("%d writes, %d reads, %d failed; every answer was checked: %v", sum.puts, sum.gets, sum.errs, verdict(wrong))
	return errors.Join(wrong...)
}

func verdict(wrong []error) string {
	if err := errors.Join(wrong...); err != nil {
		return "WRONG"
	}
	return "all right"
}
