package yokan

import (
	"context"
	"encoding/binary"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// A Pair is a key with its value.
type Pair struct{ Key, Value []byte }

// Put stores a value and waits until it is stored. The error matches ErrKeyExists or ErrKeyNotFound if a mode prevents
// the operation, and ErrInvalidArgs if the key is empty.
func (db *Database) Put(ctx context.Context, key, value []byte) error {
	return db.PutMulti(ctx, []Pair{{key, value}})
}

// copyBelow is the length in bytes below which values are copied into a common segment. Values of this length or more
// are lent directly, each as a segment of its own, which takes 72 bytes in the request.
const copyBelow = 4 << 10

// PutMulti stores pairs with one call and waits until they are stored. The service reads values of 4 KiB or more
// directly from the caller's memory, without a copy. Whether other clients see all pairs at once depends on the
// backend. If PutMulti returns an error, some pairs may have been stored. If pairs is empty, no call is made.
func (db *Database) PutMulti(ctx context.Context, pairs []Pair) error {
	keys, values := make([][]byte, len(pairs)), make([][]byte, len(pairs))
	for i, p := range pairs {
		keys[i], values[i] = p.Key, p.Value
	}
	if err := db.checkKeys("put", keys); err != nil || len(pairs) == 0 {
		return err
	}
	if db.isDirect(16*len(pairs) + totalSize(keys) + totalSize(values)) {
		in := putDirectIn{Front: db.newHead(ctx, allModes)}
		in.KeySizes, in.Keys = packItems(keys)
		in.ValueSizes, in.Values = packItems(values)
		code, err := invoke(ctx, db, "put", putDirectRPC, in)
		if err != nil {
			return err
		}
		return db.codeError("put", code)
	}
	segments := putSegments(keys, values)
	in := bulkIn{Front: db.newHead(ctx, allModes), Count: uint64(len(pairs)), Size: uint64(totalSize(segments))}
	return invokeBulk(ctx, db, "put", putRPC, mercury.Read, segments, func(b mercury.Bulk) bulkIn {
		in.Mem = b
		return in
	})
}

// putSegments returns the memory segments of a put: the sizes of the keys, the sizes of the values, the keys and the
// values. Small values are copied after the keys.
func putSegments(keys, values [][]byte) (segments [][]byte) {
	copied := 16*len(keys) + totalSize(keys)
	for _, v := range values {
		if len(v) < copyBelow {
			copied += len(v)
		}
	}
	buf := make([]byte, 0, copied)
	for _, items := range [][][]byte{keys, values} {
		for _, b := range items {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(len(b)))
		}
	}
	for _, key := range keys {
		buf = append(buf, key...)
	}
	begin := 0
	for _, v := range values {
		if len(v) < copyBelow {
			buf = append(buf, v...)
			continue
		}
		if begin < len(buf) {
			segments = append(segments, buf[begin:])
			begin = len(buf)
		}
		segments = append(segments, v)
	}
	if begin < len(buf) {
		segments = append(segments, buf[begin:])
	}
	return segments
}
