package raftqs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
)

// serverEnv makes a process of the tests a server of a benchmark: see runServer.
const serverEnv = "RAFTQS_BENCH_SERVER"

// A command is one line of JSON that a benchmark writes to a server's standard input. The reply is
// one line, too.
type command struct {
	Do      string
	Addrs   []raft.ServerAddress `json:",omitempty"` // start: of all servers, in their order
	Clients int                  `json:",omitempty"` // load
	Size    int                  `json:",omitempty"` // load: of an entry; send: of the snapshot; in bytes
	For     time.Duration        `json:",omitempty"` // load
	To      raft.ServerAddress   `json:",omitempty"` // send
}

// A reply is a server's answer to a command. An Error fails it.
type reply struct {
	Error  string             `json:",omitempty"`
	Addr   raft.ServerAddress `json:",omitempty"` // the first line, before any command
	Leads  bool               `json:",omitempty"` // lead
	Rate   float64            `json:",omitempty"` // load: commits per second
	Grown  int64              `json:",omitempty"` // grown: bytes
	Micros []int64            `json:",omitempty"` // send: how long heartbeats took
}

// A server is one process of a benchmark, with one server of raft.
//
//	start    the cluster begins
//	lead     commit an entry, and report whether that was possible
//	load     commit entries by so many clients
//	compact  forget entries
//	receive  take snapshots from now on, without a cluster
//	send     send a snapshot, and heartbeats beside it
//	grown    by how much resident memory has grown at the most since receive, or since the last send began
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// addr is where its transport listens.
	addr raft.ServerAddress
}

// startServer starts a server with a transport of a kind. Its log is in memory if dir is empty.
func startServer(t testing.TB, kind string, number int, dir string) *server {
	binary, err := os.Executable()
	require.NoError(t, err)
	s := &server{cmd: exec.Command(binary, kind, fmt.Sprint(number), dir)}
	s.cmd.Env = append(os.Environ(), serverEnv+"=1")
	s.cmd.Stderr = os.Stderr
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.out = bufio.NewReader(out)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.kill)
	s.addr = s.reply(t).Addr
	return s
}

// kill ends the process, if it has not ended.
func (s *server) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// do has the server execute a command.
func (s *server) do(t testing.TB, c command) reply {
	s.begin(t, c)
	return s.reply(t)
}

// begin sends a command; reply follows.
func (s *server) begin(t testing.TB, c command) {
	text, err := json.Marshal(c)
	require.NoError(t, err)
	_, err = s.in.Write(append(text, '\n'))
	require.NoError(t, err)
}

func (s *server) reply(t testing.TB) (r reply) {
	text, err := s.out.ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r), "%s", text)
	return r
}

// A fleet is the servers of one cluster.
type fleet []*server

// startFleet starts n servers, in dir if that is not empty, and waits for a leader.
func startFleet(t testing.TB, kind string, n int, dir string) fleet {
	var (
		f     fleet
		addrs []raft.ServerAddress
	)
	for i := range n {
		own := ""
		if dir != "" {
			own = filepath.Join(dir, fmt.Sprint(i))
			require.NoError(t, os.MkdirAll(own, 0o700))
		}
		f = append(f, startServer(t, kind, i, own))
		addrs = append(addrs, f[i].addr)
	}
	for _, s := range f {
		require.Empty(t, s.do(t, command{Do: "start", Addrs: addrs}).Error)
	}
	f.leader(t)
	return f
}

// leader waits for a leader that commits an entry, and returns its index.
func (f fleet) leader(t testing.TB) (leader int) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		for i, s := range f {
			if s.cmd.ProcessState == nil && s.do(t, command{Do: "lead"}).Leads {
				return i
			}
		}
		time.Sleep(time.Millisecond)
	}
	require.FailNow(t, "no leader")
	return -1
}

// rate returns commits per second under a load, once a round of it has gone through with one
// leader.
func (f fleet) rate(t testing.TB, load command) float64 {
	for range 5 {
		r := f[f.leader(t)].do(t, load)
		for _, s := range f {
			s.begin(t, command{Do: "compact"})
		}
		for _, s := range f {
			require.Empty(t, s.reply(t).Error)
		}
		if r.Error == "" {
			return r.Rate
		}
		t.Log("a round fails: ", r.Error)
	}
	require.FailNow(t, "five rounds have failed")
	return 0
}

// stop ends the servers.
func (f fleet) stop() {
	for _, s := range f {
		s.kill()
	}
}

// runServer is the main function of a server. It ends with its standard input.
func runServer() {
	p := &process{kind: os.Args[1], number: os.Args[2], dir: os.Args[3], out: json.NewEncoder(os.Stdout)}
	p.trans = openTransport(p.kind)
	p.reply(reply{Addr: p.trans.LocalAddr()})
	in := json.NewDecoder(os.Stdin)
	for {
		var c command
		if err := in.Decode(&c); err != nil {
			os.Exit(0) // it holds nothing that must be closed
		}
		r, err := p.execute(c)
		if err != nil {
			r.Error = err.Error()
		}
		p.reply(r)
	}
}

// A process is a server, seen from inside.
type process struct {
	kind, number, dir string
	out               *json.Encoder
	trans             raft.Transport
	raft              *raft.Raft
	growth            memoryGrowth
}

func (p *process) reply(r reply) {
	if err := p.out.Encode(r); err != nil {
		os.Exit(1)
	}
}

func (p *process) execute(c command) (r reply, err error) {
	switch c.Do {
	case "start":
		return r, p.start(c.Addrs)
	case "lead":
		r.Leads = p.raft.State() == raft.Leader && p.raft.Apply(nil, time.Second).Error() == nil
		return r, nil
	case "load":
		r.Rate, err = p.load(c)
		return r, err
	case "compact":
		if err = p.raft.Snapshot().Error(); errors.Is(err, raft.ErrNothingNewToSnapshot) {
			err = nil
		}
		return r, err
	case "receive":
		p.trans.SetHeartbeatHandler(func(rpc raft.RPC) {
			rpc.Respond(&raft.AppendEntriesResponse{Success: true},
				nil)
		})
		p.growth.begin()
		go p.receive()
		return r, nil
	case "send":
		p.growth.begin()
		r.Micros, err = p.send(c)
		return r, err
	case "grown":
		r.Grown = p.growth.end()
		return r, nil
	}
	return r, errors.New("no such command: " + c.Do)
}

func (p *process) start(addrs []raft.ServerAddress) (err error) {
	cfg := raft.DefaultConfig()
	cfg.LocalID, cfg.Logger, cfg.TrailingLogs = raft.ServerID(p.number), hclog.NewNullLogger(), 1024
	cfg.SnapshotInterval = time.Hour // compact does
	var (
		logs   raft.LogStore
		stable raft.StableStore
	)
	if p.dir == "" {
		memory := raft.NewInmemStore()
		logs, stable = memory, memory
	} else {
		disk, err := boltdb.NewBoltStore(filepath.Join(p.dir, "log"))
		if err != nil {
			return err
		}
		logs, stable = disk, disk
	}
	var all raft.Configuration
	for i, addr := range addrs {
		all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(i)), Address: addr})
	}
	snaps := raft.NewInmemSnapshotStore()
	if err = raft.BootstrapCluster(cfg, logs, stable, snaps, p.trans, all); err != nil {
		return err
	}
	p.raft, err = raft.NewRaft(cfg, discardFSM{}, logs, stable, snaps, p.trans)
	return err
}

// load returns the commits per second of so many clients, each with one entry in flight.
func (p *process) load(c command) (rate float64, err error) {
	data := make([]byte, c.Size)
	var (
		all    sync.WaitGroup
		n      atomic.Int64
		failed atomic.Pointer[error]
	)
	begun := time.Now()
	for range c.Clients {
		all.Go(func() {
			for time.Since(begun) < c.For {
				if err := p.raft.Apply(data, patience).Error(); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n.Load()) / time.Since(begun).Seconds(), nil
}

// receive takes snapshots, and writes them nowhere.
func (p *process) receive() {
	for rpc := range p.trans.Consumer() {
		_, err := io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, err)
	}
}

// send sends a snapshot from memory, and a heartbeat each millisecond meanwhile.
func (p *process) send(c command) (micros []int64, err error) {
	done := make(chan error, 1)
	go func() {
		size := int64(c.Size)
		done <- p.trans.InstallSnapshot("to", c.To, newSnapshotRequest(size), &raft.InstallSnapshotResponse{},
			&countingReader{left: size})
	}()
	for {
		select {
		case err = <-done:
			return micros, err
		default:
		}
		at := time.Now()
		if err = p.trans.AppendEntries("to", c.To, heartbeatRequest,
			&raft.AppendEntriesResponse{}); err != nil {
			return micros, err
		}
		micros = append(micros, time.Since(at).Microseconds())
		time.Sleep(time.Millisecond)
	}
}

// A memoryGrowth is by how much this process has grown.
type memoryGrowth struct {
	before, most int64
	stop         chan struct{}
	stopped      sync.WaitGroup
}

func (g *memoryGrowth) begin() {
	if g.stop != nil {
		g.end()
	}
	g.before, g.most, g.stop = residentMemory(), 0, make(chan struct{})
	stop := g.stop
	g.stopped.Go(func() {
		for every := time.NewTicker(5 * time.Millisecond); ; {
			g.most = max(g.most, residentMemory()-g.before)
			select {
			case <-every.C:
			case <-stop:
				every.Stop()
				return
			}
		}
	})
}

func (g *memoryGrowth) end() int64 {
	close(g.stop)
	g.stopped.Wait()
	g.stop = nil
	return g.most
}

// residentMemory returns how much memory this process has resident, in bytes.
func residentMemory() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	var all, pages int64
	if _, err = fmt.Sscan(string(text), &all, &pages); err != nil {
		panic(err)
	}
	return pages * int64(os.Getpagesize())
}
