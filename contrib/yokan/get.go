package yokan

import (
	"context"
	"fmt"
	"math"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// maxTries limits how often GetMulti tries to read values that grow after their lengths were read.
const maxTries = 8

// minRoom is the amount of space for values in a response below which GetMulti reads the lengths first.
const minRoom = 512

// Get returns the value of key. It waits for one call if key and value fit into a message, and for three otherwise: the
// service first answers that the space is insufficient, then returns the length of the value, and then the value.
//
// The error matches ErrKeyNotFound if there is no such key, and ErrBufferSize if the value is longer than
// Config.MaxBytes.
func (db *Database) Get(ctx context.Context, key []byte) ([]byte, error) {
	values, err := db.GetMulti(ctx, [][]byte{key})
	if err != nil {
		return nil, err
	}
	if values[0] == nil {
		return nil, db.newError("get", ErrKeyNotFound)
	}
	return values[0], nil
}

// GetMulti returns the values of keys, in the order of keys. The value of a missing key is nil; an empty value is not
// nil. GetMulti waits for as many calls as Get, for all keys together. If values grow in the meantime, it requests them
// again.
//
// With Consume it reads the lengths first, because the service erases even values that do not fit. If a value grows
// between the two calls, all values are lost, and the error matches ErrBufferSize. To avoid this, use GetPacked with a
// buffer that is large enough.
//
// The error matches ErrBufferSize if the values are longer than Config.MaxBytes, or grow faster than they can be read.
func (db *Database) GetMulti(ctx context.Context, keys [][]byte) ([][]byte, error) {
	values := make([][]byte, len(keys))
	if err := db.checkKeys("get", keys); err != nil || len(keys) == 0 {
		return values, err
	}
	pending := make([]int, len(keys)) // indexes of the keys whose values have not been read yet
	for i := range pending {
		pending[i] = i
	}
	room := directSize - 16*len(keys) - totalSize(keys)
	ask := db.mode&Consume != 0 || room < minRoom
	for range maxTries {
		if ask {
			var err error
			if pending, room, err = db.measureValues(ctx, keys, pending); err != nil || len(pending) == 0 {
				return values, err
			}
		}
		sizes, data, err := db.getValues(ctx, pickItems(keys, pending), room, nil)
		if err != nil {
			return nil, err
		}
		small := pending[:0]
		for i, n := range sizes {
			switch n {
			case sizeNotFound:
			case sizeTooSmall:
				small = append(small, pending[i])
			default:
				values[pending[i]], data = data[:n:n], data[n:]
			}
		}
		if len(small) == 0 {
			return values, nil
		}
		if db.mode&Consume != 0 {
			return nil, db.newError("get", fmt.Errorf("%w: %d values grew after their lengths were read; the service erased them", ErrBufferSize, len(small)))
		}
		pending, ask = small, true
	}
	return nil, db.newError("get", fmt.Errorf("%w: %d values grew during each attempt", ErrBufferSize, len(pending)))
}

// pickItems returns the items at the given indexes.
func pickItems(items [][]byte, indexes []int) [][]byte {
	picked := make([][]byte, len(indexes))
	for i, at := range indexes {
		picked[i] = items[at]
	}
	return picked
}

// measureValues returns the indexes in pending of the keys that exist, and the total length of their values in bytes.
func (db *Database) measureValues(ctx context.Context, keys [][]byte, pending []int) (there []int, room int, err error) {
	sizes, err := db.getLengths(ctx, "get", pickItems(keys, pending))
	if err != nil {
		return nil, 0, err
	}
	there = pending[:0]
	for i, n := range sizes {
		if n == sizeNotFound {
			continue
		}
		if n > db.maxBytes || uint64(room) > db.maxBytes-n {
			return nil, 0, db.newError("get", fmt.Errorf("%w: the value of key %d has %d bytes, after %d bytes of other values; Config.MaxBytes is %d", ErrBufferSize, pending[i], n, room, db.maxBytes))
		}
		room += int(n)
		there = append(there, pending[i])
	}
	return there, room, nil
}

// A Value is the result of GetPacked or GetEach for one key.
type Value struct {
	Data []byte // part of the caller's buffer
	Err  error  // nil, ErrKeyNotFound, or ErrBufferSize if the value did not fit
}

// GetPacked reads the values of keys into buf, one after another, with one call. The result has a Value for each key.
// For a value that does not fit, Err is ErrBufferSize. The values after it may have the same error even if they are
// short. In this case query the Lengths and call GetPacked again with a larger buffer.
//
// If keys, buf and sizes are larger than 3 KiB in total, or db has the mode Bulk, the service can read and write buf
// until GetPacked returns. With Consume the service erases even values that did not fit.
func (db *Database) GetPacked(ctx context.Context, keys [][]byte, buf []byte) ([]Value, error) {
	if err := db.checkKeys("get", keys); err != nil || len(keys) == 0 {
		return nil, err
	}
	sizes, data, err := db.getValues(ctx, keys, len(buf), buf)
	if err != nil {
		return nil, err
	}
	values := make([]Value, len(keys))
	for i, n := range sizes {
		if values[i].Err = sizeError(n); values[i].Err == nil {
			values[i].Data, data = data[:n:n], data[n:]
		}
	}
	return values, nil
}

// GetEach reads the value of keys[i] into bufs[i], with one call. The result has a Value for each key. For a value that
// is longer than its buffer, Err is ErrBufferSize. The other values are not affected.
//
// The service can read and write the buffers until GetEach returns. With Consume it erases even values that did not
// fit. The mode Direct is ignored. The error matches ErrInvalidArgs unless len(bufs) equals len(keys).
func (db *Database) GetEach(ctx context.Context, keys, bufs [][]byte) ([]Value, error) {
	if len(bufs) != len(keys) {
		return nil, db.newRefusal("get", fmt.Errorf("%w: %d keys and %d buffers", ErrInvalidArgs, len(keys), len(bufs)))
	}
	if len(keys) == 1 { // unless it is packed, the answer for a single missing key is an error
		return db.GetPacked(ctx, keys, bufs[0])
	}
	if err := db.checkKeys("get", keys); err != nil || len(keys) == 0 {
		return nil, err
	}
	sizes, err := db.getValuesBulk(ctx, keys, bufs, false)
	if err != nil {
		return nil, err
	}
	values := make([]Value, len(keys))
	for i, n := range sizes {
		if values[i].Err = sizeError(n); values[i].Err == nil {
			if n > uint64(len(bufs[i])) {
				return nil, db.newError("get", fmt.Errorf("%w: value of %d bytes in a buffer of %d", ErrAnswer, n, len(bufs[i])))
			}
			values[i].Data = bufs[i][:n:n]
		}
	}
	return values, nil
}

// sizeError returns the error that the size n encodes, or nil if n is a length.
func sizeError(n uint64) error {
	switch n {
	case sizeNotFound:
		return ErrKeyNotFound
	case sizeTooSmall:
		return ErrBufferSize
	}
	return nil
}

// getValues reads the values of keys, of at most room bytes in total, into buf, or into new memory if buf is nil. The
// returned sizes have been checked. Those that are lengths describe consecutive values in data.
func (db *Database) getValues(ctx context.Context, keys [][]byte, room int, buf []byte) (sizes []uint64, data []byte, err error) {
	if db.isDirect(16*len(keys) + totalSize(keys) + room) {
		in := getDirectIn{Front: db.newHead(ctx, allModes), ValuesSize: uint64(room)}
		in.KeySizes, in.Keys = packItems(keys)
		out, err := invoke(ctx, db, "get", getDirectRPC, in)
		if err == nil {
			err = db.codeError("get", out.Code)
		}
		if err != nil {
			return nil, nil, err
		}
		if len(out.Values) > room {
			return nil, nil, db.newError("get", fmt.Errorf("%w: %d bytes of values, want at most %d", ErrAnswer, len(out.Values), room))
		}
		if sizes, data = out.Sizes, out.Values; buf != nil {
			data = buf[:copy(buf, data)]
		}
	} else {
		if data = buf; buf == nil {
			data = make([]byte, room)
		}
		if sizes, err = db.getValuesBulk(ctx, keys, [][]byte{data}, true); err != nil {
			return nil, nil, err
		}
	}
	if err := checkSizes(sizes, len(keys), len(data)); err != nil {
		return nil, nil, db.newError("get", err)
	}
	return sizes, data, nil
}

// getValuesBulk reads values into registered memory. If packed is true, all values go to the first of bufs; otherwise
// each goes to its own buffer.
func (db *Database) getValuesBulk(ctx context.Context, keys, bufs [][]byte, packed bool) (sizes []uint64, err error) {
	n := len(keys)
	keySizes, all := packItems(keys)
	head := make([]byte, 0, 16*n+len(all)) // the keys are copied, because the service can write to all of this memory
	head = appendSizes(head, keySizes)
	if packed {
		head = head[:16*n]
	} else {
		for _, b := range bufs {
			head = appendSizes(head, []uint64{uint64(len(b))})
		}
	}
	head = append(head, all...)
	segments := append([][]byte{head}, bufs...)
	in := getIn{Front: db.newHead(ctx, allModes), Count: uint64(n), Size: uint64(totalSize(segments)), Packed: packed}
	err = invokeBulk(ctx, db, "get", getRPC, mercury.Read|mercury.Write, segments, func(b mercury.Bulk) getIn {
		in.Mem = b
		return in
	})
	if err != nil {
		return nil, err
	}
	return readSizes(head[8*n : 16*n]), nil
}

// checkSizes returns ErrAnswer unless sizes has count elements of which those that are lengths add up to at most room.
// The size sizeNoMore also results in ErrAnswer, because it is not valid for a value.
func checkSizes(sizes []uint64, count, room int) error {
	if len(sizes) != count {
		return fmt.Errorf("%w: %d sizes, want %d", ErrAnswer, len(sizes), count)
	}
	left := uint64(room)
	for i, n := range sizes {
		if n == sizeNotFound || n == sizeTooSmall {
			continue
		}
		if n > left {
			return fmt.Errorf("%w: value %d has %d bytes, the buffer has room for %d", ErrAnswer, i, n, left)
		}
		left -= n
	}
	return nil
}

// Length returns the length of key's value. The error matches ErrKeyNotFound if there is no such key.
func (db *Database) Length(ctx context.Context, key []byte) (int64, error) {
	lengths, err := db.Lengths(ctx, [][]byte{key})
	if err != nil {
		return 0, err
	}
	if lengths[0] < 0 {
		return 0, db.newError("length", ErrKeyNotFound)
	}
	return lengths[0], nil
}

// Lengths returns the lengths of the values of keys, with one call. The length for a missing key is -1.
func (db *Database) Lengths(ctx context.Context, keys [][]byte) ([]int64, error) {
	if err := db.checkKeys("length", keys); err != nil || len(keys) == 0 {
		return nil, err
	}
	sizes, err := db.getLengths(ctx, "length", keys)
	if err != nil {
		return nil, err
	}
	lengths := make([]int64, len(keys))
	for i, n := range sizes {
		lengths[i] = int64(n) // sizeNotFound becomes -1
	}
	return lengths, nil
}

// getLengths returns a length or sizeNotFound for each key.
func (db *Database) getLengths(ctx context.Context, op string, keys [][]byte) (sizes []uint64, err error) {
	n := len(keys)
	keySizes, all := packItems(keys)
	if db.isDirect(16*n + len(all)) {
		out, err := invoke(ctx, db, op, lengthDirectRPC, keysDirectIn{db.newHead(ctx, Wait), all, keySizes})
		if err == nil {
			err = db.codeError(op, out.Code)
		}
		if err != nil {
			return nil, err
		}
		sizes = out.Sizes
	} else {
		mem, err := db.lendKeys(ctx, op, lengthRPC, Wait, mercury.Read|mercury.Write, keys, 8*n)
		if err != nil {
			return nil, err
		}
		sizes = readSizes(mem)
	}
	if len(sizes) != n {
		return nil, db.newError(op, fmt.Errorf("%w: %d lengths, want %d", ErrAnswer, len(sizes), n))
	}
	for _, length := range sizes {
		if length > math.MaxInt64 && length != sizeNotFound {
			return nil, db.newError(op, fmt.Errorf("%w: invalid length %d", ErrAnswer, length))
		}
	}
	return sizes, nil
}
