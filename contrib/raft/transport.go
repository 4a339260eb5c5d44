package raftqs

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Options say how a Transport works. The zero value does.
type Options struct {
	// Cluster names the methods of the Transport, "raft/vote" for example, and is the same at all servers of a cluster. Transports of several
	// clusters may share a node. Empty means "raft".
	Cluster string
	// Addr is the address of this server that others get: any that a Node of theirs can reach, also a name, as "tcp://kv-0.kv:7000". Empty means
	// Node.Addr, which will do for all hosts but 0.0.0.0.
	Addr raft.ServerAddress
	// Addresses says where a server is now, instead of the address in raft's configuration. Nil, and an error of it, mean that one.
	Addresses raft.ServerAddressProvider
	// Timeout bounds a call, and the wait for the oldest response of a pipeline. A snapshot has that much for each 256 KiB. Zero means 10 s. A
	// peer that is lost ends calls sooner: after Config.PeerTimeout of the node.
	Timeout time.Duration
	// MaxInFlight is how many requests of a pipeline are under way without a response: the call that sends the last of them blocks until
	// one has come. Zero means 2: raft puts what comes meanwhile in one request, and more requests in flight only make smaller ones. With 1 there
	// are no pipelines.
	MaxInFlight int
	// Authorize decides whether a request runs, after Config.Authorize of the node: the caller says that it is server id. An error refuses it.
	// It is quick, since goroutines that drive the node call it, and called by many at once. Nil allows all. See VerifyName.
	Authorize func(id raft.ServerID, caller qs.Caller) error
}

// VerifyName returns a function for Options.Authorize: a request of server id is allowed if TLS has verified that its caller has the name
// that name returns for id: the SPIFFE ID, the DNS name or the common name of its certificate. A nil name is the id itself.
//
// The configuration that raft has stored is not asked: a server that was away may not know of a leader that was added meanwhile, and must
// accept its entries to learn of it.
func VerifyName(name func(raft.ServerID) string) func(raft.ServerID, qs.Caller) error {
	return func(id raft.ServerID, caller qs.Caller) error {
		want := string(id)
		if name != nil {
			want = name(id)
		}
		if want == "" || caller.Name != want {
			return qs.Errorf(qs.ErrDenied, "raftqs: server %q has certificate %q, want %q", id, caller.Name, want)
		}
		return nil
	}
}

// A Transport is a raft.Transport over a node, with raft.WithPreVote, raft.WithClose and raft.WithPeers. Its methods may be called from any
// goroutine.
type Transport struct {
	node   *qs.Node
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	consume   chan raft.RPC
	heartbeat atomic.Pointer[func(raft.RPC)]
	deliver   func(ctx context.Context, rpc raft.RPC, beat bool, answered <-chan raft.RPCResponse) (raft.RPCResponse, error)
	offer     func(rpc raft.RPC) bool

	vote     *qs.Method[raft.RequestVoteRequest, raft.RequestVoteResponse]
	preVote  *qs.Method[raft.RequestPreVoteRequest, raft.RequestPreVoteResponse]
	beat     *qs.Method[raft.AppendEntriesRequest, raft.AppendEntriesResponse]
	append   *qs.Method[raft.AppendEntriesRequest, raft.AppendEntriesResponse]
	pipe     hg.ID
	snapshot *qs.Method[snapshot, []byte]
	timeout  *qs.Method[raft.TimeoutNowRequest, raft.TimeoutNowResponse]

	mu       sync.Mutex // guards the fields below
	peers    map[raft.ServerAddress]qs.Peer
	excluded map[raft.ServerAddress]bool
	none     bool // DisconnectAll
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
	_ raft.WithPeers   = (*Transport)(nil)
)

var errDisconnected = qs.Errorf(qs.ErrUnavailable, "raftqs: disconnected from this server; Connect allows it again")

// maxPeers bounds the addresses that a Transport keeps.
const maxPeers = 256

// NewTransport returns a Transport over node, and registers its methods there: once for each Cluster of a node, before or while it serves.
// The caller serves the node, and closes it after raft has been shut down, which closes the Transport.
func NewTransport(node *qs.Node, o Options) *Transport {
	if o.Cluster == "" {
		o.Cluster = "raft"
	}
	if o.Addr == "" {
		o.Addr = raft.ServerAddress(node.Addr().String())
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = raft.DefaultMaxRPCsInFlight
	}
	t := &Transport{node: node, o: o, consume: make(chan raft.RPC), peers: map[raft.ServerAddress]qs.Peer{}, excluded: map[raft.ServerAddress]bool{}}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.deliver, t.offer = t.deliverToRaft, t.offerToRaft
	encoding := qs.WithCodec(wire{})
	t.vote = qs.Define[raft.RequestVoteRequest, raft.RequestVoteResponse](o.Cluster+"/vote", encoding)
	t.preVote = qs.Define[raft.RequestPreVoteRequest, raft.RequestPreVoteResponse](o.Cluster+"/prevote", encoding)
	t.beat = qs.Define[raft.AppendEntriesRequest, raft.AppendEntriesResponse](o.Cluster+"/heartbeat", encoding)
	t.append = qs.Define[raft.AppendEntriesRequest, raft.AppendEntriesResponse](o.Cluster+"/append", encoding)
	t.snapshot = qs.Define[snapshot, []byte](o.Cluster+"/snapshot", qs.WithCodec(codec.Msgpack))
	t.timeout = qs.Define[raft.TimeoutNowRequest, raft.TimeoutNowResponse](o.Cluster+"/timeout", encoding)
	handle(t, t.vote, false)
	handle(t, t.preVote, false)
	handle(t, t.beat, true)
	handle(t, t.append, false)
	handle(t, t.timeout, false)
	t.pipe = registerPipeline(t)
	t.snapshot.Handle(node, t.serveSnapshot)
	return t
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.consume }

// LocalAddr implements raft.Transport.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.o.Addr }

// EncodePeer implements raft.Transport.
func (t *Transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(t.address(id, addr))
}

// DecodePeer implements raft.Transport.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport. f is called on goroutines of the node.
func (t *Transport) SetHeartbeatHandler(f func(raft.RPC)) { t.heartbeat.Store(&f) }

// Close ends what is under way in both directions, with raft.ErrTransportShutdown, and refuses what comes later. raft's Shutdown calls it. The
// node goes on.
func (t *Transport) Close() error {
	t.cancel(raft.ErrTransportShutdown)
	return nil
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return call(t, t.vote, id, target, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return call(t, t.preVote, id, target, args, resp)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return call(t, t.timeout, id, target, args, resp)
}

// AppendEntries implements raft.Transport. A request of more than 1 MiB is sent in parts, each a valid request by itself.
func (t *Transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if isHeartbeat(args) {
		return call(t, t.beat, id, target, args, resp)
	}
	for _, part := range split(args) {
		if err := call(t, t.append, id, target, part, resp); err != nil || !resp.Success {
			return err
		}
	}
	return nil
}

// isHeartbeat tells the requests that raft's heartbeat sends from others without entries.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.Term != 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// maxRequest is from which size on a request is split, in bytes. The follower holds one part, and what a stream has under way.
const maxRequest = 1 << 20

// split returns args, or, if it has more than maxRequest bytes, requests that do the same one after the other. One entry is never split.
func split(args *raft.AppendEntriesRequest) []*raft.AppendEntriesRequest {
	size, first, part := 0, 0, *args
	var parts []*raft.AppendEntriesRequest
	for i, e := range args.Entries {
		n := entrySize(e)
		if i > first && size+n > maxRequest {
			p := part
			p.Entries = args.Entries[first:i]
			parts = append(parts, &p)
			last := args.Entries[i-1]
			part.PrevLogEntry, part.PrevLogTerm = last.Index, last.Term
			size, first = 0, i
		}
		size += n
	}
	if parts == nil {
		return []*raft.AppendEntriesRequest{args}
	}
	part.Entries = args.Entries[first:]
	return append(parts, &part)
}

// call calls m at a server.
func call[In, Out any](t *Transport, m *qs.Method[In, Out], id raft.ServerID, target raft.ServerAddress, in *In, out *Out) error {
	ctx, stop := t.node.HG().NA().WithTimeout(t.ctx, t.o.Timeout)
	defer stop()
	peer, err := t.peer(ctx, id, target)
	if err != nil {
		return err
	}
	return t.explain(m.CallInto(ctx, peer, *in, out))
}

// explain returns err, or that the Transport is closed.
func (t *Transport) explain(err error) error {
	if err != nil && t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return err
}

// address returns where a server is.
func (t *Transport) address(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	if t.o.Addresses != nil {
		if now, err := t.o.Addresses.ServerAddr(id); err == nil {
			return now
		}
	}
	return addr
}

// peer returns the Peer for a server.
func (t *Transport) peer(ctx context.Context, id raft.ServerID, addr raft.ServerAddress) (qs.Peer, error) {
	if t.ctx.Err() != nil {
		return qs.Peer{}, context.Cause(t.ctx)
	}
	addr = t.address(id, addr)
	t.mu.Lock()
	p, known := t.peers[addr]
	excluded := t.excludedLocked(addr)
	t.mu.Unlock()
	switch {
	case excluded:
		return p, errDisconnected
	case known:
		return p, nil
	}
	p, err := t.node.Peer(ctx, string(addr))
	if err != nil {
		return p, fmt.Errorf("raftqs: server %s: %w", id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.peers) >= maxPeers {
		clear(t.peers)
	}
	t.peers[addr] = p
	return p, nil
}

// Connect implements raft.WithPeers: it ends what Disconnect has done to addr; what DisconnectAll has done ends with ConnectAll. A Transport
// connects to servers by itself when it calls them; other is not used.
func (t *Transport) Connect(addr raft.ServerAddress, other raft.Transport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.excluded, addr)
}

// ConnectAll ends what Disconnect and DisconnectAll have done.
func (t *Transport) ConnectAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.excluded)
	t.none = false
}

// Disconnect implements raft.WithPeers: until Connect, calls to addr fail, and requests of the server at addr are refused. What is under way to
// it ends.
func (t *Transport) Disconnect(addr raft.ServerAddress) {
	t.mu.Lock()
	t.excluded[addr] = true
	p := t.peers[addr]
	t.mu.Unlock()
	t.cut(p)
}

// DisconnectAll implements raft.WithPeers: it is Disconnect for every server, until ConnectAll.
func (t *Transport) DisconnectAll() {
	t.mu.Lock()
	t.none = true
	var cut []qs.Peer
	for _, p := range t.peers {
		cut = append(cut, p)
	}
	t.mu.Unlock()
	for _, p := range cut {
		t.cut(p)
	}
}

func (t *Transport) excludedLocked(addr raft.ServerAddress) bool { return t.none || t.excluded[addr] }

// cut ends what is under way to a peer.
func (t *Transport) cut(p qs.Peer) {
	if p == (qs.Peer{}) {
		return
	}
	for _, hctx := range t.node.HG().Class().Contexts() {
		hctx.NA().Disconnect(p.Addr(), errDisconnected)
	}
}

// registerPipeline has the node serve pipelines.
func registerPipeline(t *Transport) hg.ID {
	rpc := hg.RPC{Name: t.o.Cluster + "/pipeline", Handler: t.servePipeline, Codec: wire{}}
	id, err := t.node.HG().Class().RegisterRPC(rpc)
	if err != nil {
		panic(fmt.Sprintf("raftqs: %v", err))
	}
	return id
}

// handle has the node serve a method by raft: the method of heartbeats by its heartbeat handler.
func handle[In, Out any](t *Transport, m *qs.Method[In, Out], beat bool) {
	m.Handle(t.node, func(ctx context.Context, in In) (out Out, err error) {
		got, err := serve[Out](ctx, t, any(&in).(raft.WithRPCHeader), nil, beat)
		if err == nil {
			out = *got
		}
		return out, err
	})
}

// serve has raft answer a request.
func serve[Out any](ctx context.Context, t *Transport, in raft.WithRPCHeader, data io.Reader, beat bool) (*Out, error) {
	if err := t.check(qs.CallerFrom(ctx), in); err != nil {
		return nil, err
	}
	answered := make(chan raft.RPCResponse, 1)
	got, err := t.deliver(ctx, raft.RPC{Command: in, Reader: data, RespChan: answered}, beat, answered)
	if err != nil {
		return nil, err
	}
	return answerOf[Out](got)
}

// check returns why a request is refused.
func (t *Transport) check(from qs.Caller, in raft.WithRPCHeader) error {
	h := in.GetRPCHeader()
	if t.o.Authorize != nil {
		if err := t.o.Authorize(raft.ServerID(h.ID), from); err != nil {
			return qs.Refuse(err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.excludedLocked(raft.ServerAddress(h.Addr)) {
		return qs.Refuse(errDisconnected)
	}
	return nil
}

// answerOf returns what raft has answered.
func answerOf[Out any](got raft.RPCResponse) (*Out, error) {
	if got.Error != nil {
		return nil, got.Error
	}
	out, ok := got.Response.(*Out)
	if !ok || out == nil {
		return nil, qs.Errorf(qs.ErrInternal, "raftqs: raft has answered with %T", got.Response)
	}
	return out, nil
}

// offerToRaft hands a request to the main loop of raft if that waits for one. It does not block.
func (t *Transport) offerToRaft(rpc raft.RPC) bool {
	if t.ctx.Err() != nil {
		return false
	}
	select {
	case t.consume <- rpc:
		return true
	default:
		return false
	}
}

// deliverToRaft hands a request to raft, and waits for its answer. It is left with raft when ctx ends meanwhile: raft may have begun with it, and
// its response goes into the buffer of the channel.
func (t *Transport) deliverToRaft(ctx context.Context, rpc raft.RPC, beat bool, answered <-chan raft.RPCResponse) (got raft.RPCResponse, err error) {
	if f := t.heartbeat.Load(); beat && f != nil && *f != nil {
		(*f)(rpc)
	} else {
		select {
		case t.consume <- rpc:
		case <-ctx.Done():
			return got, qs.Refuse(context.Cause(ctx))
		case <-t.ctx.Done():
			return got, qs.Refuse(hg.Errorf(qs.ErrNotReady, "%w", raft.ErrTransportShutdown))
		}
	}
	return t.await(ctx, answered)
}

// await waits for an answer of raft.
func (t *Transport) await(ctx context.Context, answered <-chan raft.RPCResponse) (got raft.RPCResponse, err error) {
	if t.node.HG().NA().Scheduled() { // a coroutine of the simulator waits in no channel
		err = t.node.HG().Wait(ctx, func() bool { return len(answered) > 0 || ctx.Err() != nil })
		if err != nil {
			return got, err
		}
	}
	select {
	case got = <-answered:
		return got, nil
	case <-ctx.Done():
		return got, context.Cause(ctx)
	case <-t.ctx.Done():
		return got, context.Cause(t.ctx)
	}
}
