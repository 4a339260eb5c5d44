package bulk

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Access specifies whether peers may read or write the memory of a handle.
type Access = na.Access

// Access modes.
const (
	// LocalOnly memory is not accessible to peers. It can only be the local side of a transfer.
	LocalOnly = na.NoAccess
	// ReadOnly, WriteOnly and ReadWrite let peers pull, push, or both.
	ReadOnly  = na.ReadOnly
	WriteOnly = na.WriteOnly
	ReadWrite = na.ReadWrite
)

// DefaultEager is the default limit, in bytes, up to which the data of a read-only handle travels
// inside the RPC.
const DefaultEager = 2 << 10

// Options configures Create. The zero value describes a local handle.
type Options struct {
	// Access specifies what peers may do with the memory. The zero value is LocalOnly.
	Access Access
	// Eager is the maximum number of bytes that travel inside the RPC. Zero means DefaultEager, and
	// a negative value disables it. The maximum is 64 KiB.
	Eager int
	// Bind puts the owner's address into the handle, so that a third process can use the handle to
	// access the memory. An owner that does not listen is reachable only from contexts to which it
	// has opened a session. From other contexts a transfer fails with ErrUnreachable. Such an owner
	// is identified by the name that it announces. If two peers announce the same name, a transfer
	// needs Spec.Peer.
	Bind bool
	// Peer, if set, is the only peer that can access the memory. It must be an address bound to a
	// session: r.Peer() in a handler or, at an origin, the target's address in [na.Context.Peers]
	// once a session exists. Requests from other peers fail with na.ErrPermission, even if they
	// have the handle. No data travels inside the RPC, regardless of Eager. Peer requires an Access
	// other than LocalOnly.
	Peer na.Addr
}

const maxEager = 64 << 10

// A Handle describes memory. A handle returned by Create describes one or more segments of this
// process. A decoded handle describes memory of a peer. A Handle is safe for concurrent use.
type Handle struct {
	hctx      *hg.Context  // nil for a remote handle
	state     *handleState // nil in the zero Handle
	eager     int          // Options.Eager with its default applied
	owner     na.Addr      // address carried by a bound handle
	eagerData []byte       // data that traveled with a remote handle
	onClosed  func()       // called when Close has completed; may be nil
}

// A handleState holds the token of a Handle. It keeps the token behind two pointers, so that the
// token is not printed. When package fmt formats a struct that contains a Handle, it may print
// every field without calling the Handle's methods, but it follows only one level of pointers.
type handleState struct {
	mem   *na.Mem // nil for a remote handle
	key   *na.Key
	moved atomic.Int64 // number of bytes that this process has moved with a remote handle
}

// mem returns the memory of a local handle, or nil for a remote handle.
func (h *Handle) mem() *na.Mem {
	if h.state == nil {
		return nil
	}
	return h.state.mem
}

// key returns the key that grants access to the memory, or the zero Key for the zero Handle.
func (h *Handle) key() na.Key {
	if h.state == nil {
		return na.Key{}
	}
	return *h.state.key
}

// Create returns a handle to segs, which are not copied. It does not block. Until Close has
// completed, peers that have the handle can access the segments as Options.Access permits. The
// error matches hg.ErrInvalid for invalid options and hg.ErrClosed if hctx is closed.
func Create(hctx *hg.Context, opts Options, segs ...[]byte) (*Handle, error) {
	if opts.Eager > maxEager {
		return nil, fmt.Errorf("bulk: create: Options.Eager is %d, limit %d: %w", opts.Eager, maxEager, hg.ErrInvalid)
	}
	if opts.Access == LocalOnly && !opts.Peer.IsZero() {
		return nil, fmt.Errorf("bulk: create: Options.Peer with Options.Access LocalOnly: %w", hg.ErrInvalid)
	}
	if hctx.NA().Closing() {
		return nil, na.WithText(hg.ErrClosed, "bulk: create: the hg.Context is closed")
	}
	cls := hctx.NA().Class()
	var mem *na.Mem
	var err error
	switch {
	case opts.Access == LocalOnly:
		mem, err = cls.NewMem(segs...)
	case !opts.Peer.IsZero():
		mem, err = cls.RegisterFor(opts.Peer, opts.Access, segs...)
	default:
		mem, err = cls.Register(opts.Access, segs...)
	}
	if err != nil {
		return nil, errtext.Wrap("bulk: create", err)
	}
	key := mem.Key()
	h := &Handle{hctx: hctx, state: &handleState{mem: mem, key: &key}, eager: opts.Eager}
	switch {
	case !opts.Peer.IsZero():
		h.eager = -1 // if the data traveled with the handle, every process that receives the handle would have it
	case h.eager == 0:
		h.eager = DefaultEager
	}
	if opts.Bind {
		h.owner = hctx.Self()
	}
	return h, nil
}

// Len returns the length of the memory in bytes.
func (h *Handle) Len() int64 { return h.key().Len }

// Moved returns the number of bytes moved with h so far. For a local handle, these are the bytes
// that peers have read and written, excluding those that traveled inside the RPC. For a remote
// handle, they are the bytes that this process has moved to and from the peer's memory, including
// those that traveled inside the RPC once they have been copied.
func (h *Handle) Moved() int64 {
	switch {
	case h.state == nil:
		return 0
	case h.Remote():
		return h.state.moved.Load()
	}
	return h.mem().Served()
}

// addMoved adds n to the number of bytes that this process has moved with a remote handle.
func (h *Handle) addMoved(n int64) {
	if h.state != nil && h.Remote() {
		h.state.moved.Add(n)
	}
}

// Access returns what the owner's peers may do with the memory.
func (h *Handle) Access() Access { return h.key().Access }

// Remote reports whether the memory belongs to a peer.
func (h *Handle) Remote() bool { return h.mem() == nil }

// Owner returns the address carried by a bound handle, or the zero Addr if h is not bound.
func (h *Handle) Owner() na.Addr { return h.owner }

// Segments returns the local segments, or nil for a remote handle. The caller must not modify the
// returned slice.
func (h *Handle) Segments() [][]byte {
	if h.Remote() {
		return nil
	}
	return h.mem().Segments()
}

// String returns a description of the handle that does not include its token.
func (h *Handle) String() string {
	where := "local"
	if h.Remote() {
		where = "remote"
	}
	return fmt.Sprintf("bulk handle of %d bytes (%s, %v)", h.Len(), where, h.Access())
}

// Format implements fmt.Formatter. It prints the result of String for every verb, so that the token
// is never printed.
func (h *Handle) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(h.String())) }

// Close begins to revoke the peers' access to the memory. It does not block. CloseFunc and
// CloseWait report when access has been revoked. A second Close fails with hg.ErrClosed. A remote
// handle does not need to be closed.
func (h *Handle) Close() error { return h.CloseFunc(nil) }

// CloseFunc is like Close, but arranges for cb to run in Trigger once no peer can access the
// memory. No peer can delay that, whether it is running, frozen or dead. A peer that is reading
// memory returned by Alloc at that moment fails; see Alloc.
//
// Transfers of this process that use the handle as their local side continue, and cb does not run
// until they complete. Cancel them to close sooner.
func (h *Handle) CloseFunc(cb func(err error)) error {
	if h.Remote() {
		if cb != nil {
			return fmt.Errorf("bulk: close: handle is remote: %w", hg.ErrInvalid)
		}
		return nil
	}
	op := h.hctx.NA().NewStep(func(_ *na.Op, r na.Result) (ran int) {
		if h.onClosed != nil {
			h.onClosed()
		}
		if cb == nil {
			return 0
		}
		cb(r.Err)
		return 1
	})
	if err := h.hctx.NA().Deregister(op, h.mem()); err != nil {
		return errtext.Wrap("bulk: close", err)
	}
	return nil
}

// CloseWait is like Close, but blocks until no peer can access the memory or ctx is done. Meanwhile
// it drives Progress and Trigger, so callbacks of other operations may run in it.
func (h *Handle) CloseWait(ctx context.Context) error {
	if h.Remote() {
		return nil
	}
	w := hghook.NewWaiter(h.hctx)
	if err := h.CloseFunc(func(error) { w.End() }); err != nil {
		return err
	}
	if err := w.Wait(ctx); err != nil && !w.Ended() {
		return fmt.Errorf("bulk: close: memory is in use by a transfer: %w", err)
	}
	return nil
}

// Constants of the encoded form, which is described in docs/internals/WIRE.md.
const (
	wireVersion  = 4
	headSize     = 3 // version, flags, number of extension fields
	flagEager    = 1
	flagBound    = 2
	flagChunkRef = 4
	chunkRefSize = 4 + 2

	fieldSize      = 8   // size in bytes of an extension field added by a later release; extension fields follow the key
	mustUnderstand = 128 // bit set in the number of fields if a process that does not know them must reject the handle
)

// MarshalBinary encodes the handle for sending inside an RPC. A process that has the encoded bytes
// can access the memory. The error matches hg.ErrClosed if the handle is closed, and hg.ErrInvalid
// if its Access is LocalOnly.
func (h *Handle) MarshalBinary() ([]byte, error) { return h.AppendBinary(nil) }

// AppendBinary is like MarshalBinary, but appends the encoded handle to b.
func (h *Handle) AppendBinary(b []byte) ([]byte, error) {
	mem, key, eager := h.mem(), h.key(), h.eagerData != nil
	switch {
	case h.state == nil:
		return nil, fmt.Errorf("bulk: encode: zero Handle: %w", hg.ErrInvalid)
	case mem != nil && key.Access == LocalOnly:
		return nil, fmt.Errorf("bulk: encode: handle is local only, set Options.Access: %w", hg.ErrInvalid)
	case mem != nil:
		if !mem.Acquire() {
			return nil, fmt.Errorf("bulk: encode: handle is closed: %w", hg.ErrClosed)
		}
		defer mem.Release()
		eager = key.Access == ReadOnly && key.Len <= int64(h.eager)
	}
	var flags byte
	if eager {
		flags |= flagEager
	}
	if !h.owner.IsZero() {
		flags |= flagBound
	}
	if key.Place.Claim != 0 {
		flags |= flagChunkRef
	}
	b = append(b, wireVersion, flags, ownFields)
	b = appendFields(key.Append(b))
	if flags&flagChunkRef != 0 {
		b = binary.LittleEndian.AppendUint32(b, key.Place.Chunk)
		b = binary.LittleEndian.AppendUint16(b, key.Place.Claim)
	}
	if flags&flagBound != 0 {
		text := h.owner.String()
		b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
		b = append(b, text...)
	}
	switch {
	case !eager:
	case mem == nil:
		b = append(b, h.eagerData...)
	default:
		at := len(b)
		b = append(b, make([]byte, key.Len)...)
		if err := copyAt(Pull, mem, 0, b[at:]); err != nil {
			return nil, errtext.Wrap("bulk: encode", err)
		}
	}
	return b, nil
}

// UnmarshalBinary decodes a handle received from a peer. It does not retain b. The error matches
// na.ErrProtocol if b is malformed, na.ErrVersion if the handle was written by a release that this
// one does not understand, and hg.ErrInvalid if h is a local handle.
func (h *Handle) UnmarshalBinary(b []byte) error {
	bad := func(what string) error {
		return fmt.Errorf("bulk: decode: %w", na.WithText(na.ErrProtocol, "bulk handle "+what))
	}
	if !h.Remote() {
		return fmt.Errorf("bulk: decode into a local handle: %w", hg.ErrInvalid)
	}
	if len(b) < headSize {
		return bad("is truncated")
	}
	later := func(what string) error {
		return fmt.Errorf("bulk: decode: %w", na.WithText(na.ErrVersion, "bulk handle "+what))
	}
	version, flags, fields := b[0], b[1], b[2]
	switch {
	case version != wireVersion:
		return later(fmt.Sprintf("has version %d, want %d", version, wireVersion))
	case flags&^(flagEager|flagBound|flagChunkRef) != 0:
		return later("has unknown flags")
	case fields&mustUnderstand != 0:
		return later("has unknown required fields")
	}
	key, err := na.DecodeKey(b[headSize:])
	if err != nil {
		return errtext.Wrap("bulk: decode", err)
	}
	if key.Access == LocalOnly {
		return bad("allows no access")
	}
	b = b[headSize+na.KeySize:]
	n := int(fields) * fieldSize
	if n > len(b) {
		return bad("has truncated fields")
	}
	takeFields(b[:n])
	b = b[n:]
	if flags&flagChunkRef != 0 {
		if len(b) < chunkRefSize {
			return bad("has a truncated chunk reference")
		}
		key.Place.Chunk, key.Place.Claim = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:])
		b = b[chunkRefSize:]
	}
	var owner na.Addr
	if flags&flagBound != 0 {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return bad("has a truncated address")
		}
		text := string(b[2 : 2+int(binary.LittleEndian.Uint16(b))])
		switch owner, err = na.ParseAddr(text); {
		case err != nil:
			return bad("has an invalid address: " + err.Error())
		case owner.String() != text:
			return bad(fmt.Sprintf("has address %q, want the form %q", text, owner))
		}
		b = b[2+len(text):]
	}
	var data []byte
	if flags&flagEager != 0 {
		if key.Access != ReadOnly || key.Len > maxEager || int64(len(b)) != key.Len {
			return bad(fmt.Sprintf("of %d bytes has %d bytes of eager data", key.Len, len(b)))
		}
		data = append(make([]byte, 0, len(b)), b...)
	} else if len(b) > 0 {
		return bad("has trailing bytes")
	}
	h.state, h.owner, h.eagerData = &handleState{key: &key}, owner, data
	return nil
}
