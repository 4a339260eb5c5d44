package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Typed methods of "qs serve --handlers typed".
var (
	typedEcho = qs.Define[[]byte, []byte]("qs/typed", qs.WithCodec(codec.Msgpack))        // returns its input
	typedTake = qs.Define[[]byte, struct{}]("qs/typed-take", qs.WithCodec(codec.Msgpack)) // accepts its input and returns nothing
)

// RPCs of qs perf. Their inputs and outputs are uninterpreted bytes.
const (
	rpcEcho = "qs/echo" // returns its input
	rpcTake = "qs/take" // accepts its input and returns nothing
	rpcGive = "qs/give" // takes a number of bytes and returns that many bytes
	rpcLook = "qs/look" // takes an encoded handle, preceded by its length as one byte, and further data; reads the handle's memory and returns the further data
	rpcMove = "qs/move" // pushes to or pulls from the caller's memory; takes a moveRequest, followed by an encoded handle of the memory
)

// A moveDir is the direction of transfers, as seen by the target.
type moveDir uint8

const (
	push moveDir = iota
	pull
)

// Limits of the requests that a target accepts.
const (
	MaxMove  = 1 << 30
	maxMoves = 4096
)

// A moveRequest requests count concurrent transfers of size bytes each.
type moveRequest struct {
	dir   moveDir
	check bool
	count uint32
	size  uint64
}

const moveRequestSize = 14

func (r *moveRequest) append(b []byte) []byte {
	b = append(b, byte(r.dir), 0)
	if r.check {
		b[len(b)-1] = 1
	}
	b = binary.LittleEndian.AppendUint32(b, r.count)
	return binary.LittleEndian.AppendUint64(b, r.size)
}

// parseMove parses a request and returns the rest of b, which is an encoded handle.
func parseMove(b []byte) (r moveRequest, rest []byte, err error) {
	if len(b) < moveRequestSize {
		return r, nil, fmt.Errorf("%s: input of %d bytes: %w", rpcMove, len(b), na.ErrProtocol)
	}
	r = moveRequest{moveDir(b[0]), b[1] == 1, binary.LittleEndian.Uint32(b[2:]), binary.LittleEndian.Uint64(b[6:])}
	if r.dir > pull || r.count < 1 || r.count > maxMoves || r.size > MaxMove {
		return r, nil, fmt.Errorf("%s: %d transfers of %d bytes, the limit is %d of %d: %w", rpcMove, r.count, r.size,
			maxMoves, MaxMove, hg.ErrInvalid)
	}
	return r, b[moveRequestSize:], nil
}

// A moveServer serves rpcMove. All requests share a block of memory, which is replaced when a request has a different
// size. While the memory is in use, the server rejects requests for another size and requests that verify the data.
type moveServer struct {
	mu    sync.Mutex // guards the fields below
	mem   *bulk.Handle
	buf   []byte
	users int  // number of requests that are using the memory
	check bool // the current request verifies the data that it pulls
}

// Register makes class a target for measurements. If inline is true, its handlers run inline; otherwise they run where
// hg.Config.Dispatch runs them.
func Register(class *hg.Class, inline bool) (err error) {
	m, g := &moveServer{}, &giveServer{}
	for name, handler := range map[string]hg.Handler{
		rpcEcho: handleEcho, rpcTake: handleTake, rpcGive: g.handleGive, rpcLook: handleLook, rpcMove: m.serveMove,
	} {
		_, failed := class.RegisterRPC(hg.RPC{Name: name, Handler: handler, Inline: inline})
		err = errors.Join(err, failed)
	}
	return err
}

// RegisterTyped makes node a target for measurements of typed calls.
func RegisterTyped(node *qs.Node) {
	typedEcho.Handle(node, func(_ context.Context, in []byte) ([]byte, error) { return in, nil })
	typedTake.Handle(node, func(context.Context, []byte) (struct{}, error) { return struct{}{}, nil })
}

func handleTake(h hg.Request) error {
	if _, err := h.InputRaw(); err != nil {
		return err
	}
	return h.RespondRaw(nil, nil)
}

// A giveServer serves rpcGive. All requests share a block of memory, whose size is that of the largest request so far.
type giveServer struct {
	mu  sync.Mutex // guards buf; the bytes in it are never modified
	buf []byte
}

// giveRequest returns an input of rpcGive that requests an output of n bytes.
func giveRequest(n int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

func (g *giveServer) handleGive(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	if len(in) != 8 {
		return fmt.Errorf("%s: input of %d bytes, want 8: %w", rpcGive, len(in), na.ErrProtocol)
	}
	n := binary.LittleEndian.Uint64(in)
	if n > MaxMove {
		return fmt.Errorf("%s: output of %d bytes requested, limit %d: %w", rpcGive, n, MaxMove, hg.ErrInvalid)
	}
	return h.RespondRaw(g.pattern(int(n)), nil)
}

// pattern returns a Pattern of n bytes. The caller must not modify the bytes, which other requests may be using.
func (g *giveServer) pattern(n int) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.buf) < n {
		g.buf = Pattern(n)
	}
	return g.buf[:n]
}

func handleEcho(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	return h.RespondRaw(in, nil)
}

// handleLook reads one byte in each 4 MiB of the lent memory. If the memory was lent without a copy, reading it
// therefore causes little traffic.
func handleLook(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	if len(in) < 1 || len(in) <= int(in[0]) {
		return fmt.Errorf("%s: input of %d bytes: %w", rpcLook, len(in), na.ErrProtocol)
	}
	remote := &bulk.Handle{}
	if err := remote.UnmarshalBinary(in[1:][:in[0]]); err != nil {
		return err
	}
	v, err := bulk.NewView(context.Background(), h.HG(), bulk.Stream{Peer: h.Peer(), Handle: remote})
	if err != nil {
		return err
	}
	for at, b := 0, v.Bytes(); at < len(b); at += 4 << 20 {
		if b[at] != patternAt(at) {
			err = fmt.Errorf("byte %d of the registered memory has changed", at)
		}
	}
	if err = errors.Join(err, v.Close()); err != nil {
		return err
	}
	return h.RespondRaw(in[1+in[0]:], nil)
}

// acquireMemory returns memory of size bytes for a request. If check is true, the memory contains zeros. The caller
// must call releaseMemory when the request is complete.
func (m *moveServer) acquireMemory(hctx *hg.Context, size uint64, check bool) (*bulk.Handle, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	same := m.mem != nil && uint64(len(m.buf)) == size
	if m.users > 0 && (!same || check || m.check) {
		return nil, nil, fmt.Errorf("%s: another measurement is in progress; try again later: %w", rpcMove, hg.ErrAgain)
	}
	if !same {
		if m.mem != nil {
			_ = m.mem.Close()
		}
		var err error
		m.mem, m.buf = nil, nil
		buf := Pattern(int(size))
		if m.mem, err = bulk.Create(hctx, bulk.Options{Access: bulk.LocalOnly}, buf); err != nil {
			return nil, nil, err
		}
		m.buf = buf
	}
	if check {
		clear(m.buf)
	}
	m.users++
	m.check = check
	return m.mem, m.buf, nil
}

func (m *moveServer) releaseMemory() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
}

func (m *moveServer) serveMove(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	r, rest, err := parseMove(in)
	if err != nil {
		return err
	}
	remote := &bulk.Handle{}
	if err := remote.UnmarshalBinary(rest); err != nil {
		return err
	}
	local, buf, err := m.acquireMemory(h.HG(), r.size, r.check)
	if err != nil {
		return err
	}
	if err := h.Detach(); err != nil {
		m.releaseMemory()
		return err
	}
	j := &job{h: h, check: r.check, buf: buf, moves: m}
	spec := bulk.Spec{Peer: h.Peer(), Remote: remote, Local: local, Size: int64(r.size), Dir: bulk.Push}
	if r.dir == pull {
		spec.Dir = bulk.Pull
	}
	done := j.handleEnd
	j.left = 1
	for range r.count {
		j.add(1)
		if _, err := bulk.Transfer(h.HG(), spec, done); err != nil {
			j.respond(err)
		}
	}
	j.respond(nil)
	return nil
}

// A job is a request in progress and its transfers.
type job struct {
	h     hg.Request
	check bool
	buf   []byte
	moves *moveServer // server that owns buf

	mu   sync.Mutex // guards the fields below
	left int
	err  error
}

func (j *job) add(n int) {
	j.mu.Lock()
	j.left += n
	j.mu.Unlock()
}

func (j *job) handleEnd(_ *bulk.Op, err error) { j.respond(err) }

// respond records that a transfer has completed with err. After the last transfer, it answers the request.
func (j *job) respond(err error) {
	j.mu.Lock()
	if j.err == nil {
		j.err = err
	}
	j.left--
	last, err := j.left == 0, j.err
	j.mu.Unlock()
	if !last {
		return
	}
	if err == nil && j.check && !isPattern(j.buf) {
		err = fmt.Errorf("pulled data is corrupt (%d bytes)", len(j.buf))
	}
	j.moves.releaseMemory()
	if err != nil {
		_ = j.h.RespondError(err, nil)
	} else {
		_ = j.h.RespondRaw(nil, nil)
	}
}

// Pattern returns n bytes, chosen so that misplaced data can be detected.
func Pattern(n int) []byte {
	b := make([]byte, n)
	fillPattern(b)
	return b
}

func fillPattern(b []byte) {
	for i := range b {
		b[i] = patternAt(i)
	}
}

func patternAt(i int) byte { return byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 }

func isPattern(b []byte) bool {
	for i, v := range b {
		if v != patternAt(i) {
			return false
		}
	}
	return true
}
