package raftqs

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/freeport"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// eachTransport runs a test over each transport.
func eachTransport(t *testing.T, o Options, f func(t *testing.T, from, to *Transport)) {
	t.Parallel()
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			from, to := openPair(t, scheme, o)
			f(t, from, to)
		})
	}
}

var header = raft.RPCHeader{ProtocolVersion: 3, ID: []byte("from"), Addr: []byte("tcp://127.0.0.1:1")}

// newEntries returns a request with n entries, of which the first is that of an index.
func newEntries(index uint64, n, size int) *raft.AppendEntriesRequest {
	r := &raft.AppendEntriesRequest{RPCHeader: header, Term: 4, Leader: []byte("l"),
		PrevLogEntry: index - 1, PrevLogTerm: 4, LeaderCommitIndex: 90}
	for i := range n {
		r.Entries = append(r.Entries,
			&raft.Log{Index: index + uint64(i), Term: 4, Data: make([]byte, size)})
	}
	return r
}

var heartbeatRequest = &raft.AppendEntriesRequest{RPCHeader: header, Term: 4, Leader: []byte("l")}

// TestCalls checks that each request arrives as it was sent, and its response is returned.
func TestCalls(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		var got any
		var answers any
		answerRequests(t, to, func(rpc raft.RPC) (any, error) {
			got = rpc.Command
			return answers, nil
		})
		h := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("to"), Addr: []byte("a")}

		appended := &raft.AppendEntriesResponse{RPCHeader: h, Term: 5, LastLog: 6, Success: true}
		answers = appended
		var a raft.AppendEntriesResponse
		request := newEntries(101, 3, 200)
		require.NoError(t, from.AppendEntries("to", to.LocalAddr(), request, &a))
		require.Equal(t, appended, &a)
		require.Equal(t, request, got)

		voted := &raft.RequestVoteResponse{RPCHeader: h, Term: 5, Granted: true}
		answers = voted
		var v raft.RequestVoteResponse
		vote := &raft.RequestVoteRequest{RPCHeader: header, Term: 5, LastLogIndex: 7, LastLogTerm: 4,
			LeadershipTransfer: true}
		require.NoError(t, from.RequestVote("to", to.LocalAddr(), vote, &v))
		require.Equal(t, voted, &v)
		require.Equal(t, vote, got)

		preVoted := &raft.RequestPreVoteResponse{RPCHeader: h, Term: 5, Granted: true}
		answers = preVoted
		var p raft.RequestPreVoteResponse
		preVote := &raft.RequestPreVoteRequest{RPCHeader: header, Term: 5, LastLogIndex: 7,
			LastLogTerm: 4}
		require.NoError(t, from.RequestPreVote("to", to.LocalAddr(), preVote, &p))
		require.Equal(t, preVoted, &p)
		require.Equal(t, preVote, got)

		timed := &raft.TimeoutNowResponse{RPCHeader: h}
		answers = timed
		var n raft.TimeoutNowResponse
		now := &raft.TimeoutNowRequest{RPCHeader: header}
		require.NoError(t, from.TimeoutNow("to", to.LocalAddr(), now, &n))
		require.Equal(t, timed, &n)
		require.Equal(t, now, got)
	})
}

// TestErrorOfRaft checks that the text of an error arrives: raft looks for "unexpected command" in
// it.
func TestErrorOfRaft(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) { return nil, errors.New("unexpected command") })
		err := from.RequestPreVote("to", to.LocalAddr(), &raft.RequestPreVoteRequest{RPCHeader: header},
			&raft.RequestPreVoteResponse{})
		require.ErrorContains(t, err, "unexpected command")
	})
}

// TestWrongResponse checks that a response of another type is an error, and no panic.
func TestWrongResponse(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) { return &raft.TimeoutNowResponse{}, nil })
		err := from.RequestVote("to", to.LocalAddr(), &raft.RequestVoteRequest{RPCHeader: header},
			&raft.RequestVoteResponse{})
		require.ErrorContains(t, err, "unexpected response type *raft.TimeoutNowResponse")
	})
}

// TestHeartbeatNotBlocked checks that a heartbeat goes to its handler while the main loop receives
// nothing, and a request with entries waits. Without a handler the main loop gets it.
func TestHeartbeatNotBlocked(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		waits := make(chan error, 1)
		go func() {
			waits <- from.AppendEntries("to", to.LocalAddr(), newEntries(101, 1, 10),
				&raft.AppendEntriesResponse{})
		}()
		to.SetHeartbeatHandler(func(rpc raft.RPC) {
			rpc.Respond(&raft.AppendEntriesResponse{Term: 4,
				Success: true}, nil)
		})
		for range 20 {
			var resp raft.AppendEntriesResponse
			require.NoError(t, from.AppendEntries("to", to.LocalAddr(), heartbeatRequest, &resp))
			require.True(t, resp.Success)
		}
		require.Empty(t, waits)
		to.SetHeartbeatHandler(nil)
		answerRequests(t, to, func(raft.RPC) (any,
			error) {
			return &raft.AppendEntriesResponse{Term: 7, Success: true}, nil
		})
		require.NoError(t, receive(t, waits))
		var resp raft.AppendEntriesResponse
		require.NoError(t, from.AppendEntries("to", to.LocalAddr(), heartbeatRequest, &resp))
		require.EqualValues(t, 7, resp.Term)
	})
}

// TestManyCallers checks that calls of many goroutines at once do not disturb each other.
func TestManyCallers(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(rpc raft.RPC) (any, error) {
			r := rpc.Command.(*raft.AppendEntriesRequest)
			return &raft.AppendEntriesResponse{Term: r.Term, LastLog: r.PrevLogEntry, Success: true}, nil
		})
		var callers sync.WaitGroup
		for i := range uint64(16) {
			callers.Go(func() {
				for k := range uint64(10) {
					var resp raft.AppendEntriesResponse
					err := from.AppendEntries("to", to.LocalAddr(), newEntries(100*i+k+1, 3, 100), &resp)
					if err != nil || resp.LastLog != 100*i+k {
						t.Errorf("caller %d: got %d, %v; want %d", i, resp.LastLog, err, 100*i+k)
					}
				}
			})
		}
		callers.Wait()
	})
}

// TestLargeRequest checks that entries that exceed one request arrive in parts, and a part that is
// refused ends the request.
func TestLargeRequest(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		var last, parts atomic.Uint64
		refuse := uint64(1 << 40)
		answerRequests(t, to, func(rpc raft.RPC) (any, error) {
			r := rpc.Command.(*raft.AppendEntriesRequest)
			parts.Add(1)
			if r.PrevLogEntry != last.Load() || r.PrevLogEntry >= refuse {
				return &raft.AppendEntriesResponse{LastLog: last.Load()}, nil
			}
			last.Store(r.Entries[len(r.Entries)-1].Index)
			return &raft.AppendEntriesResponse{Success: true, LastLog: last.Load()}, nil
		})
		var resp raft.AppendEntriesResponse
		require.NoError(t, from.AppendEntries("to", to.LocalAddr(), newEntries(1, 9, 256<<10), &resp))
		require.True(t, resp.Success)
		require.EqualValues(t, 9, resp.LastLog)
		require.EqualValues(t, 3, parts.Load())

		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		defer p.Close()
		var piped raft.AppendEntriesResponse
		f, err := p.AppendEntries(newEntries(10, 9, 256<<10), &piped)
		require.NoError(t, err)
		require.Same(t, f, receive(t, p.Consumer()))
		require.NoError(t, f.Error())
		require.True(t, f.Response().Success)
		require.EqualValues(t, 18, f.Response().LastLog)

		refuse = 20
		f, err = p.AppendEntries(newEntries(19, 9, 256<<10), &raft.AppendEntriesResponse{})
		require.NoError(t, err)
		require.NoError(t, f.Error())
		require.False(t, f.Response().Success)
	})
}

// TestClose checks that a closed Transport ends waiting calls, in both directions, and makes and
// accepts no more calls.
func TestClose(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		ended := make(chan error, 1)
		call := func() {
			ended <- from.RequestVote("to", to.LocalAddr(), &raft.RequestVoteRequest{RPCHeader: header},
				&raft.RequestVoteResponse{})
		}
		go call()
		receive(t, to.Consumer()) // and no response
		require.NoError(t, to.Close())
		require.ErrorContains(t, receive(t, ended), raft.ErrTransportShutdown.Error())
		call()
		require.ErrorContains(t, receive(t, ended), raft.ErrTransportShutdown.Error())
		require.NoError(t, from.Close())
		call()
		require.ErrorIs(t, receive(t, ended), raft.ErrTransportShutdown)
		_, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.ErrorIs(t, err, raft.ErrTransportShutdown)
		require.NoError(t, from.Close())
	})
}

// TestCloseEndsCalls checks that close ends the calls that are under way.
func TestCloseEndsCalls(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		ended := make(chan error, 1)
		go func() {
			ended <- from.RequestVote("to", to.LocalAddr(), &raft.RequestVoteRequest{RPCHeader: header},
				&raft.RequestVoteResponse{})
		}()
		receive(t, to.Consumer())
		require.NoError(t, from.Close())
		require.ErrorIs(t, receive(t, ended), raft.ErrTransportShutdown)
	})
}

// TestTimeout checks that a call that raft does not answer ends at its timeout.
func TestTimeout(t *testing.T) {
	eachTransport(t, Options{Timeout: 50 * time.Millisecond}, func(t *testing.T, from, to *Transport) {
		err := from.RequestVote("to", to.LocalAddr(), &raft.RequestVoteRequest{RPCHeader: header},
			&raft.RequestVoteResponse{})
		require.ErrorIs(t, err, qs.ErrTimeout)
	})
}

// TestServerDown checks that a server that is down is reported as an error soon, and is reached
// when it is up.
func TestServerDown(t *testing.T) {
	t.Parallel()
	addr := "tcp://" + freeport.Addr(t)
	var from *Transport
	openNode(t, "tcp://127.0.0.1:0", qs.Config{}, func(n *qs.Node) { from = NewTransport(n, Options{}) })
	defer from.Close()
	request := func() error {
		return from.RequestVote("to", raft.ServerAddress(addr),
			&raft.RequestVoteRequest{RPCHeader: header}, &raft.RequestVoteResponse{})
	}
	require.ErrorIs(t, request(), qs.ErrUnreachable)
	var to *Transport
	openNode(t, addr, qs.Config{}, func(n *qs.Node) { to = NewTransport(n, Options{}) })
	defer to.Close()
	answerRequests(t, to, func(raft.RPC) (any, error) { return &raft.RequestVoteResponse{}, nil })
	require.Eventually(t, func() bool { return request() == nil }, patience, 10*time.Millisecond)
}

// TestAddresses checks that the provider's address is used, and raft's if it has none.
func TestAddresses(t *testing.T) {
	t.Parallel()
	where := &fixedProvider{}
	var from, to *Transport
	openNode(t, "tcp://127.0.0.1:0", qs.Config{},
		func(n *qs.Node) { from = NewTransport(n, Options{Addresses: where, Addr: "tcp://from:1"}) })
	openNode(t, "tcp://127.0.0.1:0", qs.Config{}, func(n *qs.Node) { to = NewTransport(n, Options{}) })
	defer from.Close()
	defer to.Close()
	require.EqualValues(t, "tcp://from:1", from.LocalAddr())
	answerRequests(t, to, func(raft.RPC) (any, error) { return &raft.RequestVoteResponse{}, nil })
	require.EqualValues(t, "tcp://a:1", from.DecodePeer(from.EncodePeer("to", "tcp://a:1")))
	where.addr = to.LocalAddr()
	require.Equal(t, to.LocalAddr(), from.DecodePeer(from.EncodePeer("to", "tcp://a:1")))
	require.NoError(t, from.RequestVote("to", "tcp://127.0.0.1:1",
		&raft.RequestVoteRequest{RPCHeader: header}, &raft.RequestVoteResponse{}))
	require.Error(t, from.RequestVote("other", "nonsense", &raft.RequestVoteRequest{},
		&raft.RequestVoteResponse{}))
}

type fixedProvider struct{ addr raft.ServerAddress }

func (p *fixedProvider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if p.addr == "" || id != "to" {
		return "", errors.New("not known")
	}
	return p.addr, nil
}

// TestDisconnect checks that neither side reaches the other one, until Connect.
func TestDisconnect(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) { return &raft.RequestVoteResponse{}, nil })
		request := &raft.RequestVoteRequest{RPCHeader: raft.RPCHeader{Addr: []byte(from.LocalAddr())}}
		call := func() error {
			return from.RequestVote("to", to.LocalAddr(), request,
				&raft.RequestVoteResponse{})
		}
		require.NoError(t, call())
		from.Disconnect(to.LocalAddr())
		require.ErrorIs(t, call(), errDisconnected)
		from.Connect(to.LocalAddr(), nil)
		require.NoError(t, call())
		to.Disconnect(from.LocalAddr())
		require.ErrorContains(t, call(), "disconnected")
		to.Connect(from.LocalAddr(), nil)
		require.NoError(t, call())
		from.DisconnectAll()
		require.ErrorIs(t, call(), errDisconnected)
		from.ConnectAll()
		require.NoError(t, call())
	})
}

// TestClustersShareANode checks that requests of one cluster do not reach the other one.
func TestClustersShareANode(t *testing.T) {
	t.Parallel()
	var a, b *Transport
	openNode(t, "tcp://127.0.0.1:0", qs.Config{}, func(n *qs.Node) {
		a, b = NewTransport(n, Options{Cluster: "a"}), NewTransport(n, Options{Cluster: "b"})
	})
	defer a.Close()
	defer b.Close()
	answerRequests(t, a, func(raft.RPC) (any, error) { return &raft.RequestVoteResponse{Term: 1}, nil })
	answerRequests(t, b, func(raft.RPC) (any, error) { return &raft.RequestVoteResponse{Term: 2}, nil })
	for i, from := range []*Transport{a, b} {
		var resp raft.RequestVoteResponse
		require.NoError(t, from.RequestVote("to", a.LocalAddr(),
			&raft.RequestVoteRequest{RPCHeader: header}, &resp))
		require.EqualValues(t, i+1, resp.Term)
	}
}

// TestVerifyName checks that a server that claims the id of another one is refused, by the name in
// its certificate.
func TestVerifyName(t *testing.T) {
	t.Parallel()
	cert := func(name string) tls.Certificate {
		return testcert.NewWith(func(c *x509.Certificate) {
			c.Subject,
				c.DNSNames = pkix.Name{CommonName: name}, []string{name}
		})
	}
	good, bad := cert("from"), cert("other")
	pool := testcert.Pool(good)
	pool.AddCert(bad.Leaf)
	open := func(c tls.Certificate, o Options) (tr *Transport) {
		cfg := qs.Config{TLS: &tls.Config{Certificates: []tls.Certificate{c}, RootCAs: pool,
			ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}}
		openNode(t, "tcp://127.0.0.1:0", cfg, func(n *qs.Node) { tr = NewTransport(n, o) })
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr
	}
	to := open(good, Options{Authorize: VerifyName(nil)})
	answerRequests(t, to, func(rpc raft.RPC) (any, error) {
		if rpc.Reader != nil {
			return &raft.InstallSnapshotResponse{Success: true}, nil
		}
		return &raft.RequestVoteResponse{Granted: true}, nil
	})
	request := &raft.RequestVoteRequest{RPCHeader: header}
	require.NoError(t, open(good, Options{}).RequestVote("to", to.LocalAddr(), request,
		&raft.RequestVoteResponse{}))
	impostor := open(bad, Options{})
	err := impostor.RequestVote("to", to.LocalAddr(), request, &raft.RequestVoteResponse{})
	require.ErrorIs(t, err, qs.ErrDenied)
	require.ErrorContains(t, err, `the certificate of server "from" has the name "other", want "from"`)
	err = impostor.InstallSnapshot("to", to.LocalAddr(), &raft.InstallSnapshotRequest{RPCHeader: header},
		&raft.InstallSnapshotResponse{}, &io.LimitedReader{})
	require.ErrorIs(t, err, qs.ErrDenied)
	p, err := impostor.AppendEntriesPipeline("to", to.LocalAddr())
	require.NoError(t, err)
	defer p.Close()
	f, err := p.AppendEntries(newEntries(1, 1, 1), &raft.AppendEntriesResponse{})
	require.NoError(t, err)
	require.ErrorIs(t, f.Error(), qs.ErrDenied)
	byName := VerifyName(func(id raft.ServerID) string { return fmt.Sprintf("%s.raft", id) })
	require.NoError(t, byName("kv-1", callerNamed("kv-1.raft")))
	require.Error(t, byName("kv-1", callerNamed("kv-1")))
	require.Error(t, VerifyName(nil)("", qs.Caller{}), "nobody is not the server without a name")
}

// TestFollowerNodeCloses checks that calls and pipelines to a server whose node ends fail at once, not at
// their timeouts.
func TestFollowerNodeCloses(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			var from, to *Transport
			openNode(t, listenAddr(scheme), qs.Config{},
				func(n *qs.Node) { from = NewTransport(n, Options{Timeout: time.Hour}) })
			defer from.Close()
			gone := openNode(t, listenAddr(scheme), qs.Config{},
				func(n *qs.Node) { to = NewTransport(n, Options{}) })
			defer to.Close()
			ended := make(chan error, 1)
			go func() {
				ended <- from.AppendEntries("to", to.LocalAddr(), newEntries(1, 1, 1),
					&raft.AppendEntriesResponse{})
			}()
			receive(t, to.Consumer())
			p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
			require.NoError(t, err)
			defer p.Close()
			f, err := p.AppendEntries(newEntries(1, 1, 1), &raft.AppendEntriesResponse{})
			require.NoError(t, err)
			receive(t, to.Consumer())
			require.NoError(t, gone.Close())
			require.Error(t, receive(t, ended))
			require.Same(t, f, receive(t, p.Consumer()))
			require.Error(t, f.Error())
			_, err = p.AppendEntries(newEntries(2, 1, 1), &raft.AppendEntriesResponse{})
			require.Error(t, err)
		})
	}
}

// callerNamed returns a caller whose certificate has a name.
func callerNamed(name string) (c qs.Caller) {
	c.Name = name
	return c
}
