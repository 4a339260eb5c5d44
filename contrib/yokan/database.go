package yokan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// Config configures a Database. The zero value works.
type Config struct {
	// MaxBytes bounds the keys and values that one call of Get, GetMulti, ListKeys or ListPairs makes room for, in
	// bytes, and what a provider can make this process allocate. 0 means 256 MiB.
	MaxBytes int64
}

// A Database is the key-value database of one provider. It is safe for concurrent use, holds no connection of its
// own and needs no Close: it can be used until the Node is closed.
//
// Keys are not empty; values may be. Keys, values and buffers that are passed to an operation may be changed again
// when it has returned, also when its context has ended, and not before. What an operation returns is the
// caller's, except where it says that it is part of the caller's buffer.
type Database struct {
	node      *mercury.Node
	addr      string
	provider  uint16
	maxBytes  uint64
	mode      Mode
	isOldWire bool // release 0.9 or before
}

// Open returns the database of the provider at addr, "ofi+tcp://10.0.0.7:4000" or "ofi+tcp://node7:4000" for
// example. It waits for two calls: the first checks that the provider is one of Yokan, the second detects the
// encoding of requests. Neither reads or writes data.
//
// The error is an *Error. It matches mercury.ErrNoMethod if there is no such provider, ErrInvalidProvider if it is
// one of another service, and what mercury.Lookup or mercury.Node.Call returns else.
func Open(ctx context.Context, node *mercury.Node, addr string, provider uint16, cfg Config) (*Database, error) {
	db := &Database{node: node, addr: addr, provider: provider, maxBytes: min(uint64(cfg.MaxBytes), math.MaxInt)}
	switch {
	case cfg.MaxBytes < 0:
		return nil, db.newRefusal("open", fmt.Errorf("%w: Config.MaxBytes is negative", ErrInvalidArgs))
	case cfg.MaxBytes == 0:
		db.maxBytes = 256 << 20
	}
	numeric, err := mercury.Lookup(ctx, addr)
	if err != nil {
		return nil, db.newRefusal("open", err)
	}
	db.addr = numeric
	identity, err := mercury.Identity(ctx, node, db.addr, provider)
	switch {
	case errors.Is(err, mercury.ErrNoMethod):
		return nil, db.newError("open", fmt.Errorf("no such provider: %w", err))
	case err != nil:
		return nil, db.newError("open", err)
	case identity != "yokan":
		return nil, db.newError("open", fmt.Errorf("%w: got %.40q", ErrInvalidProvider, identity))
	}
	if db.isOldWire, err = db.probeVersion(ctx); err != nil {
		return nil, err
	}
	return db, nil
}

// Addr returns the address of the provider's process.
func (db *Database) Addr() string { return db.addr }

// Provider returns the number of the provider.
func (db *Database) Provider() uint16 { return db.provider }

// With returns the same database with modes that its operations carry, instead of those that db has:
//
//	err := db.With(yokan.NewOnly).Put(ctx, key, value)
func (db *Database) With(mode Mode) *Database {
	other := *db
	other.mode = mode
	return &other
}

// probeRPC is existsDirectRPC with input that has been encoded.
var probeRPC = mercury.DefineMargo[[]byte, existsDirectOut]("yk_exists_direct")

// probeVersion asks whether keys exist, with a request that is one of either encoding, and reports whether the provider
// takes it for one of release 0.9 or before: the number of flags in the answer tells. Behind the mode:
//
//	16          release 0.9: the length of the keys   from 0.10: a timeout, of next to nothing, which is not used
//	16                       the keys                            the length of the keys
//	8 bytes                                                      the keys
//	9                        the number of sizes
//	8                        the sizes                           the number of sizes
//	8 times 1                                                    the sizes
func (db *Database) probeVersion(ctx context.Context) (old bool, err error) {
	in := make([]byte, 4)
	for _, n := range [...]uint64{16, 16, 0, 9, 8, 1, 1, 1, 1, 1, 1, 1, 1} {
		in = binary.LittleEndian.AppendUint64(in, n)
	}
	out, err := invoke(ctx, db, "open", probeRPC, in)
	switch {
	case err != nil:
		return false, err
	case len(out.Flags) == 1: // a byte of flags for up to 8 keys
		return false, nil
	case len(out.Flags) == 2: // for 9 keys
		return true, nil
	case out.Code != 0:
		return false, db.newError("open", out.Code)
	}
	return false, db.newError("open", fmt.Errorf("%w: %d bytes of flags", ErrAnswer, len(out.Flags)))
}

// newHead returns the front of a request. Only modes in allowed are sent.
func (db *Database) newHead(ctx context.Context, allowed Mode) requestHead {
	f := requestHead{mode: db.mode & allowed &^ transport, isOldWire: db.isOldWire}
	if deadline, ok := ctx.Deadline(); ok {
		f.timeout = max(float64(time.Until(deadline))/float64(time.Millisecond), math.SmallestNonzeroFloat32)
	}
	return f
}

// allModes are those that an operation sends without a choice of its own.
const allModes Mode = math.MaxInt32

// directSize bounds the keys, values and sizes that travel inside a request or a response. They fit into a message
// of 4,096 bytes with the headers.
const directSize = 3 << 10

// isDirect reports whether size bytes travel inside a request or a response.
func (db *Database) isDirect(size int) bool {
	switch {
	case db.mode&Direct != 0:
		return true
	case db.mode&Bulk != 0:
		return false
	}
	return size <= directSize
}

// newError returns the error of an operation whose call failed, or was answered with an error.
func (db *Database) newError(op string, err error) error {
	fate := mercury.Ran
	if _, ok := errors.AsType[*mercury.Error](err); ok {
		fate = mercury.FateOf(err)
	}
	return &Error{Op: op, Addr: db.addr, Provider: db.provider, Fate: fate, Err: err}
}

// newRefusal returns the error of an operation that was not sent.
func (db *Database) newRefusal(op string, err error) error {
	return &Error{Op: op, Addr: db.addr, Provider: db.provider, Fate: mercury.NotRun, Err: err}
}

// codeError returns the error of an operation that the provider answered with c.
func (db *Database) codeError(op string, c Code) error {
	if c == 0 {
		return nil
	}
	return db.newError(op, c)
}

// checkKeys returns why an operation with these keys and the modes of db cannot be sent.
func (db *Database) checkKeys(op string, keys [][]byte) error {
	for i, key := range keys {
		if len(key) == 0 {
			return db.newRefusal(op, fmt.Errorf("%w: key %d is empty", ErrInvalidArgs, i))
		}
	}
	return db.checkMode(op)
}

func (db *Database) checkMode(op string) error {
	if !db.mode.isValid() {
		return db.newRefusal(op, ErrMode)
	}
	return nil
}

// invoke calls an RPC of the provider.
func invoke[In, Out any](ctx context.Context, db *Database, op string, m *mercury.Method[In, Out], in In) (Out, error) {
	out, err := m.At(db.provider).Call(ctx, db.node, db.addr, in)
	if err != nil {
		err = db.newError(op, err)
	}
	return out, err
}

// invokeBulk lends segments to the provider while it carries out an RPC. set puts the handle of the memory into
// the input. When it returns the service no longer reads or writes the segments.
func invokeBulk[In any](ctx context.Context, db *Database, op string, m *mercury.Method[In, Code], access mercury.Access, segments [][]byte, set func(mercury.Bulk) In) error {
	region, err := db.node.LendSegments(segments, access, db.addr)
	if err != nil {
		return db.newRefusal(op, err)
	}
	code, err := invoke(ctx, db, op, m, set(region.EagerBulk()))
	_ = region.Close() // always nil for registered memory of the program
	if err != nil {
		return err
	}
	return db.codeError(op, code)
}

// packItems returns the sizes of items, and the items one after the other.
func packItems(items [][]byte) (sizes []uint64, all []byte) {
	sizes = make([]uint64, len(items))
	for i, b := range items {
		sizes[i] = uint64(len(b))
	}
	all = make([]byte, 0, totalSize(items))
	for _, b := range items {
		all = append(all, b...)
	}
	return sizes, all
}

// totalSize returns the bytes in items.
func totalSize(items [][]byte) (n int) {
	for _, b := range items {
		n += len(b)
	}
	return n
}
