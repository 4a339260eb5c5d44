package yokan

import (
	"context"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// ListKeys returns at most count keys that follow from in the backend's order. If from is empty, the list starts with
// the first key. With the mode Inclusive it starts with from itself, if that key exists. Only keys that begin with
// filter are listed; some modes change the meaning of filter. To list everything, pass the last returned key as from in
// the next call, until fewer than count keys are returned.
//
// ListKeys waits for one call, and for further calls with more memory while the keys do not fit. The error matches
// ErrBufferSize if the keys are longer than Config.MaxBytes, and ErrInvalidArgs if count is negative or so large that
// the sizes alone exceed it.
func (db *Database) ListKeys(ctx context.Context, from, filter []byte, count int) ([][]byte, error) {
	pairs, err := db.listItems(ctx, from, filter, count, false)
	if err != nil {
		return nil, err
	}
	keys := make([][]byte, len(pairs))
	for i, p := range pairs {
		keys[i] = p.Key
	}
	return keys, nil
}

// ListPairs is like ListKeys but also returns the values.
func (db *Database) ListPairs(ctx context.Context, from, filter []byte, count int) ([]Pair, error) {
	return db.listItems(ctx, from, filter, count, true)
}

// A listing is a request for keys, and for values if there is room for them.
type listing struct {
	from, filter []byte
	count        int
	values       bool
	room         [2]int // space for keys and for values, in bytes
}

// A page is the answer to a listing. Its sizes have not been checked.
type page struct {
	sizes [2][]uint64
	data  [2][]byte
}

// listModes contains all modes except Consume. Pairs that did not fit are requested again, so they must not be erased.
const listModes = allModes &^ Consume

// Space in the first request, in bytes: for each key, for each value, and the maximum in total.
const (
	firstKey   = 32
	firstValue = 128
	firstRoom  = 64 << 10
)

func (db *Database) listItems(ctx context.Context, from, filter []byte, count int, values bool) ([]Pair, error) {
	if err := db.checkMode("list"); err != nil {
		return nil, err
	}
	if count < 0 || uint64(count) > db.maxBytes/16 {
		return nil, db.newRefusal("list", fmt.Errorf("%w: count is %d, want 0 to %d (Config.MaxBytes/16)", ErrInvalidArgs, count, db.maxBytes/16))
	}
	if count == 0 {
		return nil, nil
	}
	l := listing{from: from, filter: filter, count: count, values: values}
	most := int(min(firstRoom, db.maxBytes/2))
	l.room[0] = min(firstKey*count, most)
	if values {
		l.room[1] = min(firstValue*count, most)
	}
	for {
		call := db.listItemsBulk
		if db.isDirect(16*count + len(from) + len(filter) + l.room[0] + l.room[1]) {
			call = db.listItemsDirect
		}
		p, err := call(ctx, &l)
		if err != nil {
			return nil, err
		}
		pairs, small, err := p.splitPairs(&l)
		if err != nil {
			return nil, db.newError("list", err)
		}
		if small == [2]bool{} {
			return pairs, nil
		}
		for i := range l.room {
			if !small[i] {
				continue
			}
			room := min(4*uint64(l.room[i]), db.maxBytes-uint64(l.room[1-i]))
			if room <= uint64(l.room[i]) {
				return nil, db.newError("list", fmt.Errorf("%w: %d keys exceed Config.MaxBytes of %d; list fewer at a time", ErrBufferSize, count, db.maxBytes))
			}
			l.room[i] = int(room)
		}
	}
}

// splitPairs returns the listed pairs. If a buffer was too small, it reports in small whether that was the buffer for
// keys, the buffer for values, or both.
func (p *page) splitPairs(l *listing) (pairs []Pair, small [2]bool, err error) {
	last := 1
	if l.values {
		last = 2
	}
	for i := range last {
		if len(p.sizes[i]) != l.count {
			return nil, small, fmt.Errorf("%w: %d sizes, want %d", ErrAnswer, len(p.sizes[i]), l.count)
		}
	}
	for at := range l.count {
		var found [2][]byte
		for i := range last {
			n := p.sizes[i][at]
			switch {
			case n == sizeNoMore && i == 0:
				return pairs, small, nil
			case n == sizeTooSmall:
				small[i] = true
			case n > uint64(len(p.data[i])):
				return nil, small, fmt.Errorf("%w: size %d in a buffer with %d bytes left", ErrAnswer, n, len(p.data[i]))
			default:
				found[i], p.data[i] = p.data[i][:n:n], p.data[i][n:]
			}
		}
		pairs = append(pairs, Pair{found[0], found[1]})
	}
	return pairs, small, nil
}

// listItemsDirect sends l and receives the page inside the response.
func (db *Database) listItemsDirect(ctx context.Context, l *listing) (p page, err error) {
	var code Code
	if l.values {
		in := listPairsDirectIn{db.newHead(ctx, listModes), uint64(l.count), l.from, l.filter, uint64(l.room[0]), uint64(l.room[1])}
		var out listPairsDirectOut
		out, err = invoke(ctx, db, "list", listPairsDirectRPC, in)
		code, p = out.Code, page{[2][]uint64{out.KeySizes, out.ValueSizes}, [2][]byte{out.Keys, out.Values}}
	} else {
		in := listKeysDirectIn{db.newHead(ctx, listModes), uint64(l.count), l.from, l.filter, uint64(l.room[0])}
		var out listKeysDirectOut
		out, err = invoke(ctx, db, "list", listKeysDirectRPC, in)
		code, p.sizes[0], p.data[0] = out.Code, out.Sizes, out.Keys
	}
	if err == nil {
		err = db.codeError("list", code)
	}
	return p, err
}

// listItemsBulk sends l and receives the page in lent memory. The memory holds from, filter, the sizes of the keys, the
// sizes of the values, the keys, and the values.
func (db *Database) listItemsBulk(ctx context.Context, l *listing) (p page, err error) {
	n, begin := 8*l.count, len(l.from)+len(l.filter)
	parts := []int{begin, n, l.room[0]}
	if l.values {
		parts = []int{begin, n, n, l.room[0], l.room[1]}
	}
	size := 0
	for _, part := range parts {
		size += part
	}
	mem := make([]byte, size)
	copy(mem[copy(mem, l.from):], l.filter)
	segments := [][]byte{mem}
	if l.values {
		in := listPairsIn{Front: db.newHead(ctx, listModes), Packed: true, Count: uint64(l.count), FromSize: uint64(len(l.from)),
			FilterSize: uint64(len(l.filter)), KeysSize: uint64(l.room[0]), ValuesSize: uint64(l.room[1])}
		err = invokeBulk(ctx, db, "list", listPairsRPC, mercury.Read|mercury.Write, segments, func(b mercury.Bulk) listPairsIn {
			in.Mem = b
			return in
		})
	} else {
		in := listKeysIn{Front: db.newHead(ctx, listModes), Packed: true, Count: uint64(l.count), FromSize: uint64(len(l.from)),
			FilterSize: uint64(len(l.filter)), KeysSize: uint64(l.room[0])}
		err = invokeBulk(ctx, db, "list", listKeysRPC, mercury.Read|mercury.Write, segments, func(b mercury.Bulk) listKeysIn {
			in.Mem = b
			return in
		})
	}
	if err != nil {
		return p, err
	}
	mem = mem[begin:]
	p.sizes[0], mem = readSizes(mem[:n]), mem[n:]
	if l.values {
		p.sizes[1], mem = readSizes(mem[:n]), mem[n:]
	}
	p.data[0], p.data[1] = mem[:l.room[0]], mem[l.room[0]:]
	return p, nil
}
