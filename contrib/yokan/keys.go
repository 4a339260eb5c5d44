package yokan

import (
	"context"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// Count returns the number of pairs in the database.
func (db *Database) Count(ctx context.Context) (uint64, error) {
	if err := db.checkMode("count"); err != nil {
		return 0, err
	}
	out, err := invoke(ctx, db, "count", countRPC, db.newHead(ctx, 0))
	if err == nil {
		err = db.codeError("count", out.Code)
	}
	return out.Count, err
}

// Exists reports whether key exists.
func (db *Database) Exists(ctx context.Context, key []byte) (bool, error) {
	there, err := db.ExistsMulti(ctx, [][]byte{key})
	return err == nil && there[0], err
}

// ExistsMulti reports for each of keys whether it exists, with one call.
func (db *Database) ExistsMulti(ctx context.Context, keys [][]byte) ([]bool, error) {
	if err := db.checkKeys("exists", keys); err != nil || len(keys) == 0 {
		return nil, err
	}
	var flags []byte
	size := (len(keys) + 7) / 8
	if db.isDirect(8*len(keys) + totalSize(keys)) {
		in := keysDirectIn{Front: db.newHead(ctx, allModes)}
		in.Sizes, in.Keys = packItems(keys)
		out, err := invoke(ctx, db, "exists", existsDirectRPC, in)
		if err == nil {
			err = db.codeError("exists", out.Code)
		}
		if err != nil {
			return nil, err
		}
		if flags = out.Flags; len(flags) != size {
			return nil, db.newError("exists", fmt.Errorf("%w: %d bytes of flags, want %d", ErrAnswer, len(flags), size))
		}
	} else {
		var err error
		if flags, err = db.lendKeys(ctx, "exists", existsRPC, allModes, mercury.Read|mercury.Write, keys, size); err != nil {
			return nil, err
		}
	}
	there := make([]bool, len(keys))
	for i := range there {
		there[i] = flags[i/8]>>(i%8)&1 != 0
	}
	return there, nil
}

// Erase erases key. It is not an error if the key does not exist.
func (db *Database) Erase(ctx context.Context, key []byte) error {
	return db.EraseMulti(ctx, [][]byte{key})
}

// EraseMulti erases keys with one call. It is not an error if a key does not exist. If EraseMulti returns an error,
// some keys may have been erased.
func (db *Database) EraseMulti(ctx context.Context, keys [][]byte) error {
	if err := db.checkKeys("erase", keys); err != nil || len(keys) == 0 {
		return err
	}
	if db.isDirect(8*len(keys) + totalSize(keys)) {
		in := eraseDirectIn{Front: db.newHead(ctx, allModes)}
		in.Sizes, in.Keys = packItems(keys)
		code, err := invoke(ctx, db, "erase", eraseDirectRPC, in)
		if err != nil {
			return err
		}
		return db.codeError("erase", code)
	}
	_, err := db.lendKeys(ctx, "erase", eraseRPC, allModes, mercury.Read, keys, 0)
	return err
}

// ErasePrefix erases all keys that begin with prefix. An empty prefix erases everything. The error matches
// ErrOpUnsupported if the backend does not support the operation, or if the service's release is earlier than 0.10.
func (db *Database) ErasePrefix(ctx context.Context, prefix []byte) error {
	if err := db.checkMode("erase"); err != nil {
		return err
	}
	if db.isOldWire {
		return db.newRefusal("erase", fmt.Errorf("%w: the service is older than release 0.10", ErrOpUnsupported))
	}
	code, err := invoke(ctx, db, "erase", eraseRangeRPC, prefixIn{db.newHead(ctx, allModes), prefix})
	if err != nil {
		return err
	}
	return db.codeError("erase", code)
}

// lendKeys calls m and lends the service the sizes of keys, copies of the keys, and memory for an answer of the given
// number of bytes. It returns the answer.
func (db *Database) lendKeys(ctx context.Context, op string, m *mercury.Method[bulkIn, Code], allowed Mode, access mercury.Access, keys [][]byte, answer int) ([]byte, error) {
	sizes, all := packItems(keys)
	mem := append(appendSizes(make([]byte, 0, 8*len(keys)+len(all)+answer), sizes), all...)
	mem = mem[:len(mem)+answer]
	in := bulkIn{Front: db.newHead(ctx, allowed), Count: uint64(len(keys)), Size: uint64(len(mem))}
	err := invokeBulk(ctx, db, op, m, access, [][]byte{mem}, func(b mercury.Bulk) bulkIn {
		in.Mem = b
		return in
	})
	return mem[len(mem)-answer:], err
}
