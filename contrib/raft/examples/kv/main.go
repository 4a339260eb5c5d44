// Command kv is a replicated store of keys and values: hashicorp/raft over Quicksilver, by package raftqs.
//
//	qs run -n 5 -- kv -dir /tmp/kv -load 10s
//
//	client ── kv/put ──► leader ── raft ──► most servers: in bbolt, synced ──► applied, acknowledged
//	       ── kv/get ──► leader: do most servers say that it leads still? ──► its copy       (Stale: any server, at once)
//	       ── kv/watch ─► any server: a stream of what is applied there
//	group ─► who is there, and at which address: raft knows servers by name
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	qsprom "github.com/quicksilver-rpc/quicksilver/contrib/prometheus"
	raftqs "github.com/quicksilver-rpc/quicksilver/contrib/raft"
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
	load, grace                                time.Duration
	faults                                     bool
}

func main() {
	var c config
	c.flags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &c); err != nil {
		log.Fatalf("%s: %v", c.name, err)
	}
}

func (c *config) flags(f *flag.FlagSet) {
	f.StringVar(&c.name, "name", "", "`name` of this server; kv-0 to kv-(size-1) are the first; empty: by the rank that the launcher gave")
	f.IntVar(&c.size, "size", 5, "how many `servers` the cluster begins with; a launcher knows better")
	f.StringVar(&c.listen, "listen", "tcp://127.0.0.1:0", "`address` to serve at")
	f.StringVar(&c.gossip, "gossip", "", "`host:port` for the group; empty: the host of -listen and any port")
	f.StringVar(&c.seeds, "seeds", "", "`host:port,...` of members of the group; empty: those that a launcher started together")
	f.StringVar(&c.key, "key-file", "", "`file` with 32 to 64 hexadecimal digits that encrypt the gossip")
	f.StringVar(&c.web, "web", "127.0.0.1:0", "`host:port` of the debug page, /metrics, /healthz and /readyz")
	f.StringVar(&c.dir, "dir", "kv-data", "`directory` of the log and the snapshots; each server has one in it")
	f.StringVar(&c.cert, "cert", "", "PEM `file` of the certificate, for TLS")
	f.StringVar(&c.certKey, "cert-key", "", "PEM `file` of its key")
	f.StringVar(&c.ca, "ca", "", "PEM `file` of the authorities that peers' certificates must be of")
	f.DurationVar(&c.load, "load", 0, "how `long` kv-0 writes and reads, once all servers are ready; then it has a checker look at all answers, and has all end; 0: serve until SIGTERM")
	f.DurationVar(&c.grace, "grace", 8*time.Second, "how `long` calls under way may take when it ends")
	f.BoolVar(&c.faults, "faults", false, "serve kv/isolate, for experiments")
}

// run is one server, until ctx ends.
func run(ctx context.Context, c *config) (err error) {
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
	page, metrics := new(debug.Page), qsprom.New()
	cfg := qs.Config{
		TLS: tls, PeerTimeout: 2 * time.Second, ShutdownTimeout: c.grace, Inspect: true, Name: c.name,
		HG: hg.Config{Observe: metrics.Observe},
	}
	page.Attach(&cfg)
	node, err := qs.Open(c.listen, cfg)
	if err != nil {
		return err
	}
	metrics.Show(node.HG().Class())
	node.SetReady(false) // until it has a leader
	l := newLoading(c.size - 1)
	directory := &directory{last: map[raft.ServerID]raft.ServerAddress{}}
	s := &server{name: c.name, node: node}
	s.t = raftqs.NewTransport(node, raftqs.Options{Addresses: directory, Timeout: 5 * time.Second})
	disk, err := c.open(s)
	if err != nil {
		return errors.Join(err, node.Close())
	}
	s.handle(c.faults)
	if c.load > 0 && c.name == first {
		l.handle(node)
	}
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- node.Serve(serving) }()
	defer func() {
		err = errors.Join(err, s.stop()) // first, since its pipelines and watchers would keep the node from ending
		stop()                           // new calls are refused, and those under way end
		err = errors.Join(err, <-served, disk.Close())
	}()
	return c.member(ctx, s, m, directory, l, page, metrics)
}

// open opens the log and the snapshots of a server, and starts raft.
func (c *config) open(s *server) (disk *raftboltdb.BoltStore, err error) {
	dir := filepath.Join(c.dir, c.name)
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if disk, err = raftboltdb.NewBoltStore(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: c.name, Level: hclog.Error})
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, logger)
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	logs, err := raft.NewLogCache(512, disk)
	if err == nil {
		cfg := raft.DefaultConfig()
		cfg.LocalID, cfg.Logger = raft.ServerID(c.name), logger
		err = s.serve(cfg, logs, disk, snaps)
	}
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return disk, nil
}

// launched returns what the launcher says of this process; nil if nobody launched it.
func (c *config) launched(ctx context.Context) (*rendezvous.Member, error) {
	if c.seeds != "" {
		if c.name == "" {
			return nil, errors.New("-seeds needs -name")
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

// A directory knows the addresses of the servers from the group. It implements raft.ServerAddressProvider.
type directory struct {
	mu   sync.Mutex                           // guards the fields below
	g    *group.Group                         // nil until this process has joined
	last map[raft.ServerID]raft.ServerAddress // of servers that are away, too
}

func (d *directory) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.g != nil {
		if m, ok := d.g.View().Find(string(id)); ok {
			d.last[id] = raft.ServerAddress(m.Addr)
		}
	}
	if addr, ok := d.last[id]; ok {
		return addr, nil
	}
	return "", fmt.Errorf("server %s is not in the group", id)
}

// addresses returns those of all servers.
func (d *directory) addresses() (all []string) {
	for _, m := range d.g.View().Members {
		all = append(all, m.Addr)
	}
	return all
}

// member joins the group, has raft begin, and stays until ctx ends, or the load is over.
func (c *config) member(ctx context.Context, s *server, m *rendezvous.Member, d *directory, l *loading, page http.Handler, metrics prometheus.Collector) error {
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
		s.node.SetReady(false)
		if s.raft.State() == raft.Leader { // the others need not miss it first
			_ = s.raft.LeadershipTransfer().Error()
		}
		bye, stop := context.WithTimeout(context.Background(), 2*time.Second)
		defer stop()
		_ = g.Leave(bye)
	}()
	d.mu.Lock()
	d.g = g
	d.mu.Unlock()
	if m != nil {
		_ = m.Leave()
	}
	if err := c.begin(ctx, s, d); err != nil {
		return err
	}
	s.node.SetReady(true)
	log.Printf("%s: ready at %v, page http://%s", c.name, s.node.Addr(), web.Addr)
	return c.stay(ctx, s, g, d, l)
}

// begin gives the first servers their configuration, or has the leader take this server in, if it is a later one; then it waits for a leader.
func (c *config) begin(ctx context.Context, s *server, d *directory) error {
	servers := raft.Configuration{}
	known := false
	for i := range c.size {
		name := fmt.Sprint("kv-", i)
		known = known || name == c.name
		servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)}) // directory has the address
	}
	if known {
		if err := s.raft.BootstrapCluster(servers).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
			return err // raft.ErrCantBootstrap: it has begun before
		}
	} else if !has(s.raft, c.name) {
		if err := NewClient(s.node, d.addresses).Join(ctx, c.name); err != nil {
			return err
		}
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if _, leader := s.raft.LeaderWithID(); leader != "" {
			tick.Stop()
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return nil
		}
	}
}

// stay returns when the process is to end.
func (c *config) stay(ctx context.Context, s *server, g *group.Group, d *directory, l *loading) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	switch {
	case c.load > 0 && c.name == first:
		return l.run(ctx, s.node, d.addresses, c.load)
	case c.load > 0:
		waiting.Go(func() {
			defer stop()
			awaitLoad(ctx, s.node, d, c.name)
		})
	}
	for e := range g.Events(ctx) {
		log.Printf("%s: %s %v", c.name, e.Member.Name, e.Kind)
	}
	return nil
}

func has(r *raft.Raft, name string) bool {
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(name) {
			return true
		}
	}
	return false
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
