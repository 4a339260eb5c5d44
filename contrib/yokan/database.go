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

// Config configures a Database. The zero value is ready to use.
type Config struct {
	// MaxBytes limits the total size of keys and values for which a call of Get, GetMulti, ListKeys or ListPairs
	// allocates memory, in bytes. It therefore limits how much memory a provider can make this process allocate. 0
	// means 256 MiB.
	MaxBytes int64
}

// A Database is a client of one provider's key-value database. It is safe for concurrent use. It has no Close method,
// because it does not hold a connection. It is usable until the Node is closed.
//
// Keys must not be empty; values may be. Keys, values and buffers passed to an operation must not be modified until it
// returns. They may be modified afterward, even if it returned early because its context was done. The caller owns the
// results of an operation, except where they are documented to be part of the caller's buffer.
type Database struct {
	node      *mercury.Node
	addr      string
	provider  uint16
	maxBytes  uint64
	mode      Mode
	isOldWire bool // release 0.9 or earlier
}

// Open returns the database of the provider at addr, for example "ofi+tcp://10.0.0.7:4000" or "ofi+tcp://node7:4000".
// It waits for two calls. The first checks that the provider is a Yokan provider, and the second detects the encoding
// of requests. Neither reads or writes data.
//
// The error is an *Error. It matches mercury.ErrNoMethod if there is no such provider, ErrInvalidProvider if the
// provider belongs to another service, and otherwise the errors of mercury.Lookup and mercury.Node.Call.
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

// Provider returns the provider's number.
func (db *Database) Provider() uint16 { return db.provider }

// With returns a Database that is identical to db except that its operations use mode instead of the modes of db:
//
//	err := db.With(yokan.NewOnly).Put(ctx, key, value)
func (db *Database) With(mode Mode) *Database {
	other := *db
	other.mode = mode
	return &other
}

// probeRPC is like existsDirectRPC, but its input is already encoded.
var probeRPC = mercury.DefineMargo[[]byte, existsDirectOut]("yk_exists_direct")

// probeVersion reports whether the provider is of release 0.9 or earlier. It sends an exists request that is valid in
// both encodings; the number of flags in the answer reveals which one the provider used. After the mode, the request
// contains the following:
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

// newHead returns the head of a request with the modes of db that are in allowed, and the timeout derived from ctx.
func (db *Database) newHead(ctx context.Context, allowed Mode) requestHead {
	f := requestHead{mode: db.mode & allowed &^ transport, isOldWire: db.isOldWire}
	if deadline, ok := ctx.Deadline(); ok {
		f.timeout = max(float64(time.Until(deadline))/float64(time.Millisecond), math.SmallestNonzeroFloat32)
	}
	return f
}

// allModes is the mask of operations that send every mode.
const allModes Mode = math.MaxInt32

// directSize is the maximum total size, in bytes, of keys, values and sizes that travel inside a request or a response.
// Together with the headers they then fit into a message of 4,096 bytes.
const directSize = 3 << 10

// isDirect reports whether size bytes of keys, values and sizes travel inside the request or response. That depends on
// directSize, unless the modes Direct or Bulk are set.
func (db *Database) isDirect(size int) bool {
	switch {
	case db.mode&Direct != 0:
		return true
	case db.mode&Bulk != 0:
		return false
	}
	return size <= directSize
}

// newError returns the error for an operation whose call failed or whose answer was an error.
func (db *Database) newError(op string, err error) error {
	fate := mercury.Ran
	if _, ok := errors.AsType[*mercury.Error](err); ok {
		fate = mercury.FateOf(err)
	}
	return &Error{Op: op, Addr: db.addr, Provider: db.provider, Fate: fate, Err: err}
}

// newRefusal returns the error for an operation that failed with err before anything was sent.
func (db *Database) newRefusal(op string, err error) error {
	return &Error{Op: op, Addr: db.addr, Provider: db.provider, Fate: mercury.NotRun, Err: err}
}

// codeError returns the error for an operation that the provider answered with c.
func (db *Database) codeError(op string, c Code) error {
	if c == 0 {
		return nil
	}
	return db.newError(op, c)
}

// checkKeys returns an error if a key is empty or if the modes of db exclude each other.
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

// invoke calls one of the provider's RPCs.
func invoke[In, Out any](ctx context.Context, db *Database, op string, m *mercury.Method[In, Out], in In) (Out, error) {
	out, err := m.At(db.provider).Call(ctx, db.node, db.addr, in)
	if err != nil {
		err = db.newError(op, err)
	}
	return out, err
}

// invokeBulk calls an RPC and lends segments to the provider during the call. The function set stores the handle of the
// lent memory in the input. The service does not access the segments after invokeBulk has returned.
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

// packItems returns the sizes of items, and items concatenated.
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

// totalSize returns the total number of bytes in items.
func totalSize(items [][]byte) (n int) {
	for _, b := range items {
		n += len(b)
	}
	return n
}
