// Command kv is a replicated key-value store that runs hashicorp/raft over Quicksilver by means of
// package raftqs.
//
//	qs run -n 5 -- kv -dir /tmp/kv -load 10s
//
// A Put is sent to the leader and is acknowledged after a majority has synced its log entry to
// bbolt and the leader has applied it. A Get is sent to the leader, which answers after a majority
// has confirmed that it still leads. A Get with Stale set, and a Watch, are answered by any server
// from the entries that it has applied.
//
// Package group tracks the servers and their addresses. Raft identifies servers by name.
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

// A config holds the command-line flags.
type config struct {
	name, listen, gossip, web, dir, seeds, key string
	cert, certKey, ca                          string
	size                                       int
	load, grace                                time.Duration
	faults                                     bool
}

func main() {
	var c config
	c.registerFlags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &c); err != nil {
		log.Fatalf("%s: %v", c.name, err)
	}
}

// registerFlags registers the flags of c with f.
func (c *config) registerFlags(f *flag.FlagSet) {
	f.StringVar(&c.name, "name", "", "`name` of this server; the initial servers are kv-0 to kv-(size-1); "+
		"empty: from the rank that the launcher assigned")
	f.IntVar(&c.size, "size", 5, "number of initial `servers`; a launcher overrides it")
	f.StringVar(&c.listen, "listen", "tcp://127.0.0.1:0", "`address` to serve at")
	f.StringVar(&c.gossip, "gossip", "",
		"`host:port` for the gossip of the group; empty: the host of -listen and any port")
	f.StringVar(&c.seeds, "seeds", "",
		"`host:port,...` of members of the group; empty: the processes that a launcher started together")
	f.StringVar(&c.key, "key-file", "", "`file` with 32 to 64 hexadecimal digits that encrypt the gossip")
	f.StringVar(&c.web, "web", "127.0.0.1:0",
		"`host:port` of the debug page, /metrics, /healthz and /readyz")
	f.StringVar(&c.dir, "dir", "kv-data",
		"`directory` for logs and snapshots; each server uses a subdirectory")
	f.StringVar(&c.cert, "cert", "", "PEM `file` of the certificate, for TLS")
	f.StringVar(&c.certKey, "cert-key", "", "PEM `file` of its key")
	f.StringVar(&c.ca, "ca", "", "PEM `file` of the authorities that sign the peers' certificates")
	f.DurationVar(&c.load, "load", 0,
		"for how `long` kv-0 writes and reads once all servers are ready; then a checker verifies all "+
			"answers, and all servers exit; 0: serve until SIGTERM")
	f.DurationVar(&c.grace, "grace", 8*time.Second, "how `long` to wait for calls in progress at exit")
	f.BoolVar(&c.faults, "faults", false, "serve kv/isolate, for experiments")
}

// run runs one server until ctx is done or the load is complete.
func run(ctx context.Context, c *config) (err error) {
	m, err := c.joinLauncher(ctx)
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
	node.SetReady(false) // until there is a leader
	l := newLoadRun(c.size - 1)
	directory := &directory{last: map[raft.ServerID]raft.ServerAddress{}}
	s := &server{name: c.name, node: node}
	s.transport = raftqs.NewTransport(node,
		raftqs.Options{Addresses: directory, Timeout: 5 * time.Second})
	disk, err := c.openRaft(s)
	if err != nil {
		return errors.Join(err, node.Close())
	}
	s.registerMethods(c.faults)
	if c.load > 0 && c.name == loadServer {
		l.registerMethod(node)
	}
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- node.Serve(serving) }()
	defer func() {
		err = errors.Join(err, s.stop()) // before the node, because its shutdown waits for pipelines and watchers
		stop()                           // new calls are rejected; calls in progress may complete
		err = errors.Join(err, <-served, disk.Close())
	}()
	return c.runMember(ctx, s, m, directory, l, page, metrics)
}

// openRaft opens a server's log and snapshots, and starts raft.
func (c *config) openRaft(s *server) (disk *raftboltdb.BoltStore, err error) {
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
		err = s.startRaft(cfg, logs, disk, snaps)
	}
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return disk, nil
}

// joinLauncher joins the processes that a launcher started, and obtains rank and size from it. If
// there is no launcher, the Member is nil.
func (c *config) joinLauncher(ctx context.Context) (*rendezvous.Member, error) {
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

// A directory looks up the addresses of servers in the group. It implements
// raft.ServerAddressProvider.
type directory struct {
	mu   sync.Mutex                           // guards the fields below
	g    *group.Group                         // nil until this process has joined
	last map[raft.ServerID]raft.ServerAddress // last known addresses, including those of servers that have left the group
}

// ServerAddr implements raft.ServerAddressProvider.
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

// addresses returns the addresses of all members of the group.
func (d *directory) addresses() (all []string) {
	for _, m := range d.g.View().Members {
		all = append(all, m.Addr)
	}
	return all
}

// runMember joins the group and bootstraps raft. It returns when ctx is done or the load is
// complete.
func (c *config) runMember(
	ctx context.Context, s *server, m *rendezvous.Member, d *directory, l *loadRun,
	page http.Handler, metrics prometheus.Collector,
) error {
	web, err := c.serveWeb(page, metrics)
	if err != nil {
		return err
	}
	defer web.Close()
	o := group.Options{
		Name:       c.name,
		Gossip:     c.gossip,
		Rendezvous: m,
		Serves:     []string{"kv"},
		Meta:       []byte(web.Addr),
	}
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
		if s.raft.State() == raft.Leader { // hand over now, because an election would begin only after a timeout
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
	if err := c.bootstrap(ctx, s, d); err != nil {
		return err
	}
	s.node.SetReady(true)
	log.Printf("%s: ready at %v, page http://%s", c.name, s.node.Addr(), web.Addr)
	return c.waitForEnd(ctx, s, g, d, l)
}

// bootstrap initializes the configuration of an initial server, or requests that the leader add a
// later one. It then waits for a leader.
func (c *config) bootstrap(ctx context.Context, s *server, d *directory) error {
	servers := raft.Configuration{}
	isInitial := false
	for i := range c.size {
		name := fmt.Sprint("kv-", i)
		isInitial = isInitial || name == c.name
		// The address is the server's name, which the directory resolves.
		servers.Servers = append(
			servers.Servers,
			raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)},
		)
	}
	if isInitial {
		if err := s.raft.BootstrapCluster(servers).Error(); err != nil &&
			!errors.Is(err, raft.ErrCantBootstrap) {
			return err // raft.ErrCantBootstrap: this server has state from an earlier run
		}
	} else if !isMember(s.raft, c.name) {
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

// waitForEnd takes part in the load, if there is one, and logs the group's events. It returns when
// ctx is done or the load is complete.
func (c *config) waitForEnd(
	ctx context.Context, s *server, g *group.Group, d *directory, l *loadRun,
) error {
	var waiters sync.WaitGroup
	defer waiters.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	switch {
	case c.load > 0 && c.name == loadServer:
		return l.run(ctx, s.node, d.addresses, c.load)
	case c.load > 0:
		waiters.Go(func() {
			defer stop()
			awaitLoad(ctx, s.node, d, c.name)
		})
	}
	for e := range g.Events(ctx) {
		log.Printf("%s: %s %v", c.name, e.Member.Name, e.Kind)
	}
	return nil
}

// isMember reports whether raft's configuration contains the named server.
func isMember(r *raft.Raft, name string) bool {
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(name) {
			return true
		}
	}
	return false
}

// serveWeb serves the debug page, health checks and metrics over HTTP.
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
