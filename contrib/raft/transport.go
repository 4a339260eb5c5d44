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

// Options configures a Transport. The zero value is ready to use.
type Options struct {
	// Cluster is the prefix of the Transport's method names, as in "raft/vote". It must be the same
	// on all servers of a cluster. Transports of different clusters may share a node. Empty means
	// "raft".
	Cluster string
	// Addr is the address at which other servers reach this server. It may contain a host name, as
	// in "tcp://kv-0.kv:7000". Empty means Node.Addr, which works unless the node listens on
	// 0.0.0.0.
	Addr raft.ServerAddress
	// Addresses returns a server's current address, which replaces the one in raft's configuration.
	// If it is nil or returns an error, the address in the configuration is used.
	Addresses raft.ServerAddressProvider
	// Timeout limits the duration of a call, and the wait for the oldest response of a pipeline.
	// For a snapshot the limit applies to each 256 KiB. Zero means 10 s. Calls to a lost peer end
	// sooner, after the node's Config.PeerTimeout.
	Timeout time.Duration
	// MaxInFlight is the maximum number of a pipeline's requests that may be in flight. At this
	// number AppendEntries blocks until a response arrives. While it blocks, raft collects entries
	// for one large request, so a larger limit only makes requests smaller. Zero means 2. With 1,
	// pipelines are disabled.
	MaxInFlight int
	// Authorize decides whether to accept a request from a caller that claims to be the server id.
	// If it returns an error, the request is rejected. It runs after the node's Config.Authorize,
	// on the goroutines that drive the node. It is called concurrently and must not block. Nil
	// accepts all requests. See VerifyName.
	Authorize func(id raft.ServerID, caller qs.Caller) error
}

// VerifyName returns a function for Options.Authorize. It accepts a request from server id if TLS
// has verified that the caller's certificate has the name that the name function returns for id.
// The name in a certificate is its SPIFFE ID, its DNS name or its common name. If name is nil, the
// certificate must contain id itself.
//
// VerifyName does not consult raft's stored configuration. A server that was down may not know a
// leader that was added in the meantime, and must accept that leader's entries in order to learn of
// it.
func VerifyName(name func(raft.ServerID) string) func(raft.ServerID, qs.Caller) error {
	return func(id raft.ServerID, caller qs.Caller) error {
		want := string(id)
		if name != nil {
			want = name(id)
		}
		if want == "" || caller.Name != want {
			return qs.Errorf(qs.ErrDenied,
				"raftqs: the certificate of server %q has the name %q, want %q", id, caller.Name, want)
		}
		return nil
	}
}

// A Transport is a raft.Transport that uses a node. It also implements raft.WithPreVote,
// raft.WithClose and raft.WithPeers. Its methods are safe for concurrent use.
type Transport struct {
	node   *qs.Node
	opts   Options
	ctx    context.Context // canceled by Close
	cancel context.CancelCauseFunc

	rpcs             chan raft.RPC // requests for raft's main loop
	heartbeatHandler atomic.Pointer[func(raft.RPC)]
	// deliver and offer are deliverToRaft and offerToRaft. Tests replace them.
	deliver func(
		ctx context.Context, rpc raft.RPC, heartbeat bool, replies <-chan raft.RPCResponse,
	) (raft.RPCResponse, error)
	offer func(rpc raft.RPC) bool

	vote       *qs.Method[raft.RequestVoteRequest, raft.RequestVoteResponse]
	preVote    *qs.Method[raft.RequestPreVoteRequest, raft.RequestPreVoteResponse]
	heartbeat  *qs.Method[raft.AppendEntriesRequest, raft.AppendEntriesResponse]
	append     *qs.Method[raft.AppendEntriesRequest, raft.AppendEntriesResponse]
	pipelineID hg.ID
	snapshot   *qs.Method[snapshotInput, []byte]
	timeoutNow *qs.Method[raft.TimeoutNowRequest, raft.TimeoutNowResponse]

	mu              sync.Mutex // guards the fields below
	peers           map[raft.ServerAddress]qs.Peer
	excluded        map[raft.ServerAddress]bool // servers passed to Disconnect
	disconnectedAll bool                        // DisconnectAll was called
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
	_ raft.WithPeers   = (*Transport)(nil)
)

var errDisconnected = qs.Errorf(qs.ErrUnavailable,
	"raftqs: server is disconnected; call Connect to allow it again")

// maxPeers limits the size of the peer cache. A full cache is cleared.
const maxPeers = 256

// NewTransport returns a Transport that uses node, and registers its methods there. It may be
// called once for each Cluster of a node, before or while the node serves, and panics if the
// methods are already registered. The caller serves the node. To stop, the caller first shuts down
// raft, which closes the Transport, and then closes the node.
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
	t := &Transport{
		node:     node,
		opts:     o,
		rpcs:     make(chan raft.RPC),
		peers:    map[raft.ServerAddress]qs.Peer{},
		excluded: map[raft.ServerAddress]bool{},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.deliver, t.offer = t.deliverToRaft, t.offerToRaft
	encoding := qs.WithCodec(wireCodec{})
	t.vote = qs.Define[raft.RequestVoteRequest, raft.RequestVoteResponse](o.Cluster+"/vote", encoding)
	t.preVote = qs.Define[raft.RequestPreVoteRequest, raft.RequestPreVoteResponse](o.Cluster+"/prevote",
		encoding)
	t.heartbeat = qs.Define[raft.AppendEntriesRequest, raft.AppendEntriesResponse](o.Cluster+"/heartbeat",
		encoding)
	t.append = qs.Define[raft.AppendEntriesRequest, raft.AppendEntriesResponse](o.Cluster+"/append",
		encoding)
	t.snapshot = qs.Define[snapshotInput, []byte](o.Cluster+"/snapshot", qs.WithCodec(codec.Msgpack))
	t.timeoutNow = qs.Define[raft.TimeoutNowRequest, raft.TimeoutNowResponse](o.Cluster+"/timeout",
		encoding)
	registerMethod(t, t.vote, false)
	registerMethod(t, t.preVote, false)
	registerMethod(t, t.heartbeat, true)
	registerMethod(t, t.append, false)
	registerMethod(t, t.timeoutNow, false)
	t.pipelineID = registerPipeline(t)
	t.snapshot.Handle(node, t.serveSnapshot)
	return t
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.rpcs }

// LocalAddr implements raft.Transport.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.opts.Addr }

// EncodePeer implements raft.Transport.
func (t *Transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(t.resolveAddr(id, addr))
}

// DecodePeer implements raft.Transport.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport. The node's goroutines call f, which must not
// block.
func (t *Transport) SetHeartbeatHandler(f func(raft.RPC)) { t.heartbeatHandler.Store(&f) }

// Close ends the calls in progress in both directions with raft.ErrTransportShutdown, and rejects
// later ones. It does not block, and does not close the node. Raft's Shutdown calls it.
func (t *Transport) Close() error {
	t.cancel(raft.ErrTransportShutdown)
	return nil
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(
	id raft.ServerID,
	target raft.ServerAddress,
	args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	return callServer(t, t.vote, id, target, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return callServer(t, t.preVote, id, target, args, resp)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(
	id raft.ServerID,
	target raft.ServerAddress,
	args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse,
) error {
	return callServer(t, t.timeoutNow, id, target, args, resp)
}

// AppendEntries implements raft.Transport. It sends a request larger than 1 MiB in several parts,
// each of which is a valid request.
func (t *Transport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if isHeartbeat(args) {
		return callServer(t, t.heartbeat, id, target, args, resp)
	}
	for _, part := range splitRequest(args) {
		if err := callServer(t, t.append, id, target, part, resp); err != nil || !resp.Success {
			return err
		}
	}
	return nil
}

// isHeartbeat reports whether r is a heartbeat, which has only a term. Raft's own transport uses
// the same test (net_transport.go of hashicorp/raft).
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.Term != 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 &&
		r.LeaderCommitIndex == 0
}

// maxRequest is the size above which a request is split, in bytes. It limits the memory that the
// follower uses for each request, in addition to the stream's flow-control window.
const maxRequest = 1 << 20

// splitRequest returns the requests to send, one after another, in place of args. The result is
// args itself unless args is larger than maxRequest bytes. An entry is never split.
func splitRequest(args *raft.AppendEntriesRequest) []*raft.AppendEntriesRequest {
	size, first, part := 0, 0, *args
	var parts []*raft.AppendEntriesRequest
	for i, e := range args.Entries {
		n := maxEntrySize(e)
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

// callServer calls m at the server id with Options.Timeout, and blocks until the call completes.
func callServer[In, Out any](
	t *Transport, m *qs.Method[In, Out], id raft.ServerID, target raft.ServerAddress, in *In, out *Out,
) error {
	ctx, stop := t.node.HG().NA().WithTimeout(t.ctx, t.opts.Timeout)
	defer stop()
	peer, err := t.peerFor(ctx, id, target)
	if err != nil {
		return err
	}
	return t.orCloseCause(m.CallInto(ctx, peer, *in, out))
}

// orCloseCause returns err, or raft.ErrTransportShutdown in place of a non-nil err if the Transport
// is closed.
func (t *Transport) orCloseCause(err error) error {
	if err != nil && t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return err
}

// resolveAddr returns the current address of the server id: the one that Options.Addresses returns
// or, if that fails, addr.
func (t *Transport) resolveAddr(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	if t.opts.Addresses != nil {
		if current, err := t.opts.Addresses.ServerAddr(id); err == nil {
			return current
		}
	}
	return addr
}

// peerFor returns the Peer for a server. It resolves the server's address unless the Peer is
// cached.
func (t *Transport) peerFor(
	ctx context.Context,
	id raft.ServerID,
	addr raft.ServerAddress,
) (qs.Peer, error) {
	if t.ctx.Err() != nil {
		return qs.Peer{}, context.Cause(t.ctx)
	}
	addr = t.resolveAddr(id, addr)
	t.mu.Lock()
	p, cached := t.peers[addr]
	excluded := t.excludedLocked(addr)
	t.mu.Unlock()
	switch {
	case excluded:
		return p, errDisconnected
	case cached:
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

// Connect implements raft.WithPeers. It reverses Disconnect for addr, but not DisconnectAll, which
// only ConnectAll reverses. It does not open a connection; calls do so when necessary. The
// parameter other is not used.
func (t *Transport) Connect(addr raft.ServerAddress, other raft.Transport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.excluded, addr)
}

// ConnectAll reverses Disconnect and DisconnectAll.
func (t *Transport) ConnectAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.excluded)
	t.disconnectedAll = false
}

// Disconnect implements raft.WithPeers. Until Connect is called, calls to addr fail and requests
// from the server at addr are rejected. Calls in progress with that server are ended. Disconnect
// does not block.
func (t *Transport) Disconnect(addr raft.ServerAddress) {
	t.mu.Lock()
	t.excluded[addr] = true
	p := t.peers[addr]
	t.mu.Unlock()
	t.disconnect(p)
}

// DisconnectAll implements raft.WithPeers. It has the effect of Disconnect for every server, until
// ConnectAll is called.
func (t *Transport) DisconnectAll() {
	t.mu.Lock()
	t.disconnectedAll = true
	var connected []qs.Peer
	for _, p := range t.peers {
		connected = append(connected, p)
	}
	t.mu.Unlock()
	for _, p := range connected {
		t.disconnect(p)
	}
}

// excludedLocked reports whether calls to and from the server at addr are rejected, because of
// Disconnect or DisconnectAll. t.mu must be held.
func (t *Transport) excludedLocked(addr raft.ServerAddress) bool {
	return t.disconnectedAll || t.excluded[addr]
}

// disconnect closes the connections to p and ends the calls on them.
func (t *Transport) disconnect(p qs.Peer) {
	if p == (qs.Peer{}) {
		return
	}
	for _, hctx := range t.node.HG().Class().Contexts() {
		hctx.NA().Disconnect(p.Addr(), errDisconnected)
	}
}

// registerPipeline registers the pipeline method.
func registerPipeline(t *Transport) hg.ID {
	rpc := hg.RPC{Name: t.opts.Cluster + "/pipeline", Handler: t.servePipeline, Codec: wireCodec{}}
	id, err := t.node.HG().Class().RegisterRPC(rpc)
	if err != nil {
		panic(fmt.Sprintf("raftqs: %v", err))
	}
	return id
}

// registerMethod registers a method whose requests raft answers. If heartbeat is true, requests are
// passed to raft's heartbeat handler, if one is set.
func registerMethod[In, Out any](t *Transport, m *qs.Method[In, Out], heartbeat bool) {
	m.Handle(t.node, func(ctx context.Context, in In) (out Out, err error) {
		got, err := serveRequest[Out](ctx, t, any(&in).(raft.WithRPCHeader), nil, heartbeat)
		if err == nil {
			out = *got
		}
		return out, err
	})
}

// serveRequest passes a request to raft and returns the response. It blocks until raft has
// answered.
func serveRequest[Out any](
	ctx context.Context, t *Transport, in raft.WithRPCHeader, data io.Reader, heartbeat bool,
) (*Out, error) {
	if err := t.authorize(qs.CallerFrom(ctx), in); err != nil {
		return nil, err
	}
	replies := make(chan raft.RPCResponse, 1)
	got, err := t.deliver(ctx, raft.RPC{Command: in, Reader: data, RespChan: replies}, heartbeat, replies)
	if err != nil {
		return nil, err
	}
	return typedResponse[Out](got)
}

// authorize calls Options.Authorize and returns an error if the caller's request must be rejected.
func (t *Transport) authorize(caller qs.Caller, in raft.WithRPCHeader) error {
	h := in.GetRPCHeader()
	if t.opts.Authorize != nil {
		if err := t.opts.Authorize(raft.ServerID(h.ID), caller); err != nil {
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

// typedResponse returns the response in got as an *Out, or the error in got.
func typedResponse[Out any](got raft.RPCResponse) (*Out, error) {
	if got.Error != nil {
		return nil, got.Error
	}
	out, ok := got.Response.(*Out)
	if !ok || out == nil {
		return nil, qs.Errorf(qs.ErrInternal, "raftqs: unexpected response type %T from raft", got.Response)
	}
	return out, nil
}

// offerToRaft passes a request to raft's main loop if the loop is ready to receive it. It does not
// block.
func (t *Transport) offerToRaft(rpc raft.RPC) bool {
	if t.ctx.Err() != nil {
		return false
	}
	select {
	case t.rpcs <- rpc:
		return true
	default:
		return false
	}
}

// deliverToRaft passes rpc to raft and waits for the reply. If ctx is done first, raft may still be
// processing the request. replies must therefore have room for the reply.
func (t *Transport) deliverToRaft(
	ctx context.Context, rpc raft.RPC, heartbeat bool, replies <-chan raft.RPCResponse,
) (got raft.RPCResponse, err error) {
	if f := t.heartbeatHandler.Load(); heartbeat && f != nil && *f != nil {
		(*f)(rpc)
	} else {
		select {
		case t.rpcs <- rpc:
		case <-ctx.Done():
			return got, qs.Refuse(context.Cause(ctx))
		case <-t.ctx.Done():
			return got, qs.Refuse(hg.Errorf(qs.ErrNotReady, "%w", raft.ErrTransportShutdown))
		}
	}
	return t.awaitReply(ctx, replies)
}

// awaitReply waits for a reply from raft. It returns an error if ctx is done or the Transport is
// closed first.
func (t *Transport) awaitReply(
	ctx context.Context, replies <-chan raft.RPCResponse,
) (got raft.RPCResponse, err error) {
	if t.node.HG().NA().Scheduled() { // a coroutine of the simulator must not block on a channel
		err = t.node.HG().Wait(ctx, func() bool { return len(replies) > 0 || ctx.Err() != nil })
		if err != nil {
			return got, err
		}
	}
	select {
	case got = <-replies:
		return got, nil
	case <-ctx.Done():
		return got, context.Cause(ctx)
	case <-t.ctx.Done():
		return got, context.Cause(t.ctx)
	}
}
