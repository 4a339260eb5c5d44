package bulk

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Access says what peers may do with the memory of a handle.
type Access = na.Access

// The access modes.
const (
	// LocalOnly memory is not published: it is the local side of transfers only.
	LocalOnly = na.NoAccess
	ReadOnly  = na.ReadOnly
	WriteOnly = na.WriteOnly
	ReadWrite = na.ReadWrite
)

// DefaultEager is the length in bytes up to which the data of a read-only handle travels inside the RPC.
const DefaultEager = 2 << 10

// Options say how a handle is made. The zero value makes a local one.
type Options struct {
	Access Access
	// Eager bounds the data that travels inside the RPC. Zero means DefaultEager; negative means none does. At most
	// 64 KiB.
	Eager int
	// Bind puts the owner's address into the handle, so that a third process can reach the memory through it. An owner that does
	// not listen is reached by those contexts that it has a session with, of its own making; elsewhere a transfer fails with
	// ErrUnreachable. It is known there by what it says of itself: if two peers say the same, a transfer needs Spec.Peer.
	Bind bool
	// Peer, if set, is the only one that can reach the memory: the session that the address is bound to, as r.Peer() in a
	// handler is. An origin finds that of its target in [na.Context.Peers], once there is a session. Requests of others fail
	// with na.ErrPermission, also when they have the handle, which has no data with it whatever Eager says. It needs an Access.
	Peer na.Addr
}

const maxEager = 64 << 10

// A Handle describes memory: that of this process, over one or more segments, or that of a peer, from which it came.
// Handles are safe for use by several goroutines.
type Handle struct {
	hctx  *hg.Context // nil for a remote handle
	in    *inside     // nil in the zero Handle
	eager int         // Options.Eager with its default
	owner na.Addr     // of a bound handle
	data  []byte      // that came along with a remote handle
	freed func()      // hears that Close has completed; may be nil
}

// inside holds what is not to be printed. When package fmt prints a struct that contains a Handle it may ask no method,
// print every field, and follow one pointer, but never two.
type inside struct {
	mem   *na.Mem // nil for a remote handle
	key   *na.Key
	moved atomic.Int64 // of a remote handle: bytes that this process has moved
}

// mem returns the memory of this process, or nil for a remote handle.
func (h *Handle) mem() *na.Mem {
	if h.in == nil {
		return nil
	}
	return h.in.mem
}

// key returns the key of any but the zero Handle.
func (h *Handle) key() na.Key {
	if h.in == nil {
		return na.Key{}
	}
	return *h.in.key
}

// Create makes a handle over segs, which are used and not copied. Until Close has completed, peers that have the handle
// can reach them and they are kept alive.
func Create(hctx *hg.Context, opts Options, segs ...[]byte) (*Handle, error) {
	if opts.Eager > maxEager {
		return nil, fmt.Errorf("bulk: create: Options.Eager is %d, the limit is %d: %w", opts.Eager, maxEager, hg.ErrInvalid)
	}
	if opts.Access == LocalOnly && !opts.Peer.IsZero() {
		return nil, fmt.Errorf("bulk: create: Options.Peer is for memory that a peer may reach, Options.Access says LocalOnly: %w", hg.ErrInvalid)
	}
	if hctx.NA().Closing() {
		return nil, fmt.Errorf("bulk: create: the context is closed: %w", hg.ErrClosed)
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
		return nil, fmt.Errorf("bulk: create: %w", err)
	}
	key := mem.Key()
	h := &Handle{hctx: hctx, in: &inside{mem: mem, key: &key}, eager: opts.Eager}
	switch {
	case !opts.Peer.IsZero():
		h.eager = -1 // whoever had the handle would have the data
	case h.eager == 0:
		h.eager = DefaultEager
	}
	if opts.Bind {
		h.owner = hctx.Self()
	}
	return h, nil
}

// Len returns the number of bytes.
func (h *Handle) Len() int64 { return h.key().Len }

// Moved returns how many bytes peers have read from the memory of this process and written to it, as far as is known by now: not those that
// travelled inside the RPC. Of a remote handle it is how many bytes this process has moved with h from and to the memory of the peer, these
// among them.
func (h *Handle) Moved() int64 {
	switch {
	case h.in == nil:
		return 0
	case h.Remote():
		return h.in.moved.Load()
	}
	return h.mem().Served()
}

// countMoved counts n bytes that this process has moved with a remote handle.
func (h *Handle) countMoved(n int64) {
	if h.in != nil && h.Remote() {
		h.in.moved.Add(n)
	}
}

// Access returns what peers of the owner may do.
func (h *Handle) Access() Access { return h.key().Access }

// Remote reports whether the memory is a peer's.
func (h *Handle) Remote() bool { return h.mem() == nil }

// Owner returns the address that a bound handle carries, or the zero Addr.
func (h *Handle) Owner() na.Addr { return h.owner }

// Segments returns the local segments, or nil for a remote handle. The caller does not change the slice.
func (h *Handle) Segments() [][]byte {
	if h.Remote() {
		return nil
	}
	return h.mem().Segments()
}

// String describes the handle without its token.
func (h *Handle) String() string {
	where := "local"
	if h.Remote() {
		where = "remote"
	}
	return fmt.Sprintf("bulk handle of %d bytes (%s, %v)", h.Len(), where, h.Access())
}

// Format keeps the token out of every verb of package fmt.
func (h *Handle) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(h.String())) }

// Close begins to take the memory back, and never waits; CloseFunc and CloseWait tell the end. A second Close fails with
// hg.ErrClosed; a remote handle needs none.
func (h *Handle) Close() error { return h.CloseFunc(nil) }

// CloseFunc is Close that runs cb in Trigger when no peer can touch the memory any more: no peer, alive, frozen or gone, can
// delay that. Of memory of Alloc a peer may be reading a piece at that moment, which fails there: see Alloc. Transfers of this process that use the handle as their local side go on and are waited for; cancel them to be
// quick.
func (h *Handle) CloseFunc(cb func(err error)) error {
	if h.Remote() {
		if cb != nil {
			return fmt.Errorf("bulk: close: the memory is a peer's: %w", hg.ErrInvalid)
		}
		return nil
	}
	op := h.hctx.NA().NewStep(func(_ *na.Op, r na.Result) (ran int) {
		if h.freed != nil {
			h.freed()
		}
		if cb == nil {
			return 0
		}
		cb(r.Err)
		return 1
	})
	if err := h.hctx.NA().Deregister(op, h.mem()); err != nil {
		return fmt.Errorf("bulk: close: %w", err)
	}
	return nil
}

// CloseWait is Close that blocks: it drives Progress and Trigger until no peer can touch the memory, or ctx ends. Callbacks of
// other operations may run meanwhile.
func (h *Handle) CloseWait(ctx context.Context) error {
	if h.Remote() {
		return nil
	}
	w := hghook.NewWaiter(h.hctx)
	if err := h.CloseFunc(func(error) { w.End() }); err != nil {
		return err
	}
	if err := w.Wait(ctx); err != nil && !w.Ended() {
		return fmt.Errorf("bulk: close: a transfer of this process still uses the memory: %w", err)
	}
	return nil
}

// The encoded form; docs/internals/WIRE.md has the picture.
const (
	wireVersion = 3
	flagEager   = 1
	flagBound   = 2
	flagPlace   = 4
	placeSize   = 4 + 2
)

// MarshalBinary encodes the handle to travel inside an RPC. The bytes are a key to the memory.
func (h *Handle) MarshalBinary() ([]byte, error) { return h.AppendBinary(nil) }

// AppendBinary is MarshalBinary at the end of b. The error matches hg.ErrClosed when the handle is closed, and
// hg.ErrInvalid when it is a local one.
func (h *Handle) AppendBinary(b []byte) ([]byte, error) {
	mem, key, eager := h.mem(), h.key(), h.data != nil
	switch {
	case h.in == nil:
		return nil, fmt.Errorf("bulk: encode: the handle describes no memory: %w", hg.ErrInvalid)
	case mem != nil && key.Access == LocalOnly:
		return nil, fmt.Errorf("bulk: encode: a local handle cannot travel; create it with an access mode: %w", hg.ErrInvalid)
	case mem != nil:
		if !mem.Acquire() {
			return nil, fmt.Errorf("bulk: encode: the handle is closed: %w", hg.ErrClosed)
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
		flags |= flagPlace
	}
	b = append(b, wireVersion, flags)
	b = key.Append(b)
	if flags&flagPlace != 0 {
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
		b = append(b, h.data...)
	default:
		at := len(b)
		b = append(b, make([]byte, key.Len)...)
		if err := copyAt(Pull, mem, 0, b[at:]); err != nil {
			return nil, fmt.Errorf("bulk: encode: %w", err)
		}
	}
	return b, nil
}

// UnmarshalBinary decodes a peer's handle. It keeps no reference to b. The error matches na.ErrProtocol.
func (h *Handle) UnmarshalBinary(b []byte) error {
	bad := func(what string) error {
		return fmt.Errorf("bulk: decode: %w", na.WithText(na.ErrProtocol, "bulk handle "+what))
	}
	if !h.Remote() {
		return fmt.Errorf("bulk: decode into a local handle: %w", hg.ErrInvalid)
	}
	if len(b) < 2 {
		return bad("is too short")
	}
	version, flags := b[0], b[1]
	switch {
	case version != wireVersion:
		return bad(fmt.Sprintf("of version %d, this is version %d", version, wireVersion))
	case flags&^(flagEager|flagBound|flagPlace) != 0:
		return bad("has unknown flags")
	}
	key, err := na.DecodeKey(b[2:])
	if err != nil {
		return fmt.Errorf("bulk: decode: %w", err)
	}
	if key.Access == LocalOnly {
		return bad("allows no access")
	}
	b = b[2+na.KeySize:]
	if flags&flagPlace != 0 {
		if len(b) < placeSize {
			return bad("ends inside its place")
		}
		key.Place.Chunk, key.Place.Claim = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:])
		b = b[placeSize:]
	}
	var owner na.Addr
	if flags&flagBound != 0 {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return bad("ends inside its address")
		}
		text := string(b[2 : 2+int(binary.LittleEndian.Uint16(b))])
		switch owner, err = na.ParseAddr(text); {
		case err != nil:
			return bad("has a bad address: " + err.Error())
		case owner.String() != text:
			return bad(fmt.Sprintf("has address %q, which is to be written as %q", text, owner))
		}
		b = b[2+len(text):]
	}
	var data []byte
	if flags&flagEager != 0 {
		if key.Access != ReadOnly || key.Len > maxEager || int64(len(b)) != key.Len {
			return bad(fmt.Sprintf("of %d bytes comes with %d bytes of data", key.Len, len(b)))
		}
		data = append(make([]byte, 0, len(b)), b...)
	} else if len(b) > 0 {
		return bad("is followed by bytes that do not belong to it")
	}
	h.in, h.owner, h.data = &inside{key: &key}, owner, data
	return nil
}
