package yokan_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// What requests begin with, in releases from 0.10 and before.
type (
	requestHead interface{ mode() yokan.Mode }
	head010     struct {
		Mode    int32
		Timeout float64
	}
	head009 struct{ Mode int32 }
)

func (h head010) mode() yokan.Mode { return yokan.Mode(h.Mode) }
func (h head009) mode() yokan.Mode { return yokan.Mode(h.Mode) }

// Input and output as Yokan declares them in C; D stands for the direct RPCs.
type (
	bulkIn[H requestHead] struct {
		Head                H
		Count, Offset, Size uint64
		Origin              *string
		Mem                 mercury.Bulk
	}
	getIn[H requestHead] struct {
		Head                H
		Count, Offset, Size uint64
		Origin              *string
		Packed              bool
		Mem                 mercury.Bulk
	}
	keysIn[H requestHead] struct {
		Head                                          H
		Packed                                        bool
		Count, FromSize, FilterSize, Offset, KeysSize uint64
		Origin                                        *string
		Mem                                           mercury.Bulk
	}
	pairsIn[H requestHead] struct {
		Head                                          H
		Packed                                        bool
		Count, FromSize, FilterSize, Offset, KeysSize uint64
		ValuesSize                                    uint64
		Origin                                        *string
		Mem                                           mercury.Bulk
	}
	checkDIn[H requestHead] struct {
		Head  H
		Keys  []byte   `proc:"u64"`
		Sizes []uint64 `proc:"u64"`
	}
	eraseDIn[H requestHead] struct {
		Head  H
		Sizes []uint64 `proc:"u64"`
		Keys  []byte   `proc:"u64"`
	}
	prefixIn[H requestHead] struct {
		Head   H
		Prefix []byte `proc:"u64"`
	}
	putDIn[H requestHead] struct {
		Head                 H
		KeySizes, ValueSizes []uint64 `proc:"u64"`
		Keys, Values         []byte   `proc:"u64"`
	}
	getDIn[H requestHead] struct {
		Head  H
		Room  uint64
		Sizes []uint64 `proc:"u64"`
		Keys  []byte   `proc:"u64"`
	}
	keysDIn[H requestHead] struct {
		Head         H
		Count        uint64
		From, Filter []byte `proc:"u64"`
		KeysSize     uint64
	}
	pairsDIn[H requestHead] struct {
		Head                 H
		Count                uint64
		From, Filter         []byte `proc:"u64"`
		KeysSize, ValuesSize uint64
	}

	countOut struct {
		Ret   int32
		Count uint64
	}
	existsDOut struct {
		Flags []byte `proc:"u64"`
		Ret   int32
	}
	lengthDOut struct {
		Sizes []uint64 `proc:"u64"`
		Ret   int32
	}
	getDOut struct {
		Sizes  []uint64 `proc:"u64"`
		Values []byte   `proc:"u64"`
		Ret    int32
	}
	keysDOut struct {
		Ret   int32
		Sizes []uint64 `proc:"u64"`
		Keys  []byte   `proc:"u64"`
	}
	pairsDOut struct {
		Ret                  int32
		KeySizes, ValueSizes []uint64 `proc:"u64"`
		Keys, Values         []byte   `proc:"u64"`
	}
)

// Sizes that are none.
const (
	absent   = math.MaxUint64
	tooSmall = math.MaxUint64 - 1
	noMore   = math.MaxUint64 - 2
)

// A reply is what the double answers, before it is encoded or written to the client's memory.
type reply struct {
	ret   int32
	count uint64
	flags []byte
	sizes [2][]uint64
	data  [2][]byte
}

// A double is a provider of Yokan with a database in memory, in Go.
type double struct {
	t assert.TestingT

	mu    sync.Mutex
	forge func(rpc string, r *reply) // changes replies
	data  map[string][]byte
	calls map[string]int // by the name of the RPC
	last  any            // the head of the last request
}

// forgeWith has fn change the replies, which are made one at a time.
func (d *double) forgeWith(fn func(rpc string, r *reply)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forge = fn
}

// lastHead returns what the last request began with.
func (d *double) lastHead() any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// takeCalls returns how often RPCs were called since the previous call.
func (d *double) takeCalls() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = map[string]int{}
	return calls
}

// modes are those that the double supports. It ignores the other flags of C's client: that data are direct, and
// that there are arguments of which the timeout was one.
const modes = yokan.Direct | 1<<16 | yokan.Inclusive | yokan.Append | yokan.Consume | yokan.NewOnly | yokan.ExistOnly | yokan.NoPrefix | yokan.IgnoreKeys | yokan.Suffix

// serveDouble serves a double at provider 42 of a node of its own, and returns the node's address.
func serveDouble[H requestHead](t testing.TB) (*double, string) {
	n := openNode(t)
	return addDouble[H](t, n), n.Addr()
}

// exampleService returns a node with a double, and its address.
func exampleService() (*mercury.Node, string) {
	n, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		panic(err)
	}
	addDouble[head010](panickingT{}, n)
	return n, n.Addr()
}

// panickingT is the test of an example.
type panickingT struct{}

func (panickingT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// addDouble has n serve a double at provider 42.
func addDouble[H requestHead](t assert.TestingT, n *mercury.Node) *double {
	d := &double{t: t, data: map[string][]byte{}, calls: map[string]int{}}
	p, err := n.Provide(42, "yokan")
	assert.NoError(t, err)
	handle(d, p, "yk_count", func(_ context.Context, h H) (countOut, error) {
		r := d.reply("yk_count", h, func(r *reply) { r.count = uint64(len(d.data)) })
		return countOut{r.ret, r.count}, nil
	})
	handle(d, p, "yk_exists", func(ctx context.Context, in bulkIn[H]) (int32, error) {
		return bulkKeys(ctx, d, "yk_exists", in, func(keys [][]byte, r *reply) { d.exists(keys, r) })
	})
	handle(d, p, "yk_exists_direct", func(_ context.Context, in checkDIn[H]) (existsDOut, error) {
		r := d.reply("yk_exists_direct", in.Head, func(r *reply) { d.exists(splitItems(in.Sizes, in.Keys, r), r) })
		return existsDOut{r.flags, r.ret}, nil
	})
	handle(d, p, "yk_length", func(ctx context.Context, in bulkIn[H]) (int32, error) {
		return bulkKeys(ctx, d, "yk_length", in, func(keys [][]byte, r *reply) { d.lengths(keys, r) })
	})
	handle(d, p, "yk_length_direct", func(_ context.Context, in checkDIn[H]) (lengthDOut, error) {
		r := d.reply("yk_length_direct", in.Head, func(r *reply) { d.lengths(splitItems(in.Sizes, in.Keys, r), r) })
		return lengthDOut{r.sizes[0], r.ret}, nil
	})
	handle(d, p, "yk_erase", func(ctx context.Context, in bulkIn[H]) (int32, error) {
		return bulkKeys(ctx, d, "yk_erase", in, func(keys [][]byte, _ *reply) { d.erase(keys) })
	})
	handle(d, p, "yk_erase_direct", func(_ context.Context, in eraseDIn[H]) (int32, error) {
		return d.reply("yk_erase_direct", in.Head, func(r *reply) { d.erase(splitItems(in.Sizes, in.Keys, r)) }).ret, nil
	})
	handle(d, p, "yk_put", func(ctx context.Context, in bulkIn[H]) (int32, error) {
		mem, sizes := d.pull(ctx, in.Mem, in.Origin, in.Offset, in.Size), [2][]uint64{}
		for i := range sizes {
			sizes[i], mem = decodeNumbers(mem[:8*in.Count]), mem[8*in.Count:]
		}
		return d.reply("yk_put", in.Head, func(r *reply) {
			keys := splitItems(sizes[0], mem, r)
			d.put(in.Head.mode(), keys, splitItems(sizes[1], mem[totalSize(keys):], r), r)
		}).ret, nil
	})
	handle(d, p, "yk_put_direct", func(_ context.Context, in putDIn[H]) (int32, error) {
		return d.reply("yk_put_direct", in.Head, func(r *reply) {
			d.put(in.Head.mode(), splitItems(in.KeySizes, in.Keys, r), splitItems(in.ValueSizes, in.Values, r), r)
		}).ret, nil
	})
	handle(d, p, "yk_get", func(ctx context.Context, in getIn[H]) (int32, error) {
		mem := d.pull(ctx, in.Mem, in.Origin, in.Offset, in.Size)
		n := 8 * in.Count
		sizes, begin := decodeNumbers(mem[:n]), 2*n
		for _, size := range sizes {
			begin += size
		}
		rooms := []uint64{in.Size - begin}
		if !in.Packed {
			rooms = decodeNumbers(mem[n : 2*n])
		}
		r := d.reply("yk_get", in.Head, func(r *reply) { d.get(in.Head.mode(), splitItems(sizes, mem[2*n:], r), rooms, r) })
		if len(rooms) == 1 && !in.Packed && r.sizes[0][0] > noMore {
			return int32(yokan.ErrFromMercury), nil // the service takes the size for a length
		}
		if r.ret == 0 {
			d.push(ctx, in.Mem, in.Offset+n, encodeNumbers(r.sizes[0]))
			d.push(ctx, in.Mem, in.Offset+begin, r.data[0])
		}
		return r.ret, nil
	})
	handle(d, p, "yk_get_direct", func(_ context.Context, in getDIn[H]) (getDOut, error) {
		r := d.reply("yk_get_direct", in.Head, func(r *reply) {
			d.get(in.Head.mode(), splitItems(in.Sizes, in.Keys, r), []uint64{in.Room}, r)
		})
		return getDOut{r.sizes[0], r.data[0], r.ret}, nil
	})
	handle(d, p, "yk_list_keys", func(ctx context.Context, in keysIn[H]) (int32, error) {
		assert.True(d.t, in.Packed)
		mem := d.pull(ctx, in.Mem, in.Origin, in.Offset, in.FromSize+in.FilterSize)
		r := d.reply("yk_list_keys", in.Head, func(r *reply) {
			d.list(in.Head.mode(), mem[:in.FromSize], mem[in.FromSize:], in.Count, [2]uint64{in.KeysSize, 1 << 30}, r)
		})
		if r.ret == 0 {
			at := in.Offset + uint64(len(mem))
			d.push(ctx, in.Mem, at, encodeNumbers(r.sizes[0]))
			d.push(ctx, in.Mem, at+8*in.Count, r.data[0])
		}
		return r.ret, nil
	})
	handle(d, p, "yk_list_keys_direct", func(_ context.Context, in keysDIn[H]) (keysDOut, error) {
		r := d.reply("yk_list_keys_direct", in.Head, func(r *reply) {
			d.list(in.Head.mode(), in.From, in.Filter, in.Count, [2]uint64{in.KeysSize, 1 << 30}, r)
		})
		return keysDOut{r.ret, r.sizes[0], r.data[0]}, nil
	})
	handle(d, p, "yk_list_keyvals", func(ctx context.Context, in pairsIn[H]) (int32, error) {
		assert.True(d.t, in.Packed)
		mem := d.pull(ctx, in.Mem, in.Origin, in.Offset, in.FromSize+in.FilterSize)
		r := d.reply("yk_list_keyvals", in.Head, func(r *reply) {
			d.list(in.Head.mode(), mem[:in.FromSize], mem[in.FromSize:], in.Count, [2]uint64{in.KeysSize, in.ValuesSize}, r)
		})
		if r.ret == 0 {
			at := in.Offset + uint64(len(mem))
			d.push(ctx, in.Mem, at, encodeNumbers(r.sizes[0]))
			d.push(ctx, in.Mem, at+8*in.Count, encodeNumbers(r.sizes[1]))
			d.push(ctx, in.Mem, at+16*in.Count, r.data[0])
			d.push(ctx, in.Mem, at+16*in.Count+in.KeysSize, r.data[1])
		}
		return r.ret, nil
	})
	handle(d, p, "yk_list_keyvals_direct", func(_ context.Context, in pairsDIn[H]) (pairsDOut, error) {
		r := d.reply("yk_list_keyvals_direct", in.Head, func(r *reply) {
			d.list(in.Head.mode(), in.From, in.Filter, in.Count, [2]uint64{in.KeysSize, in.ValuesSize}, r)
		})
		return pairsDOut{r.ret, r.sizes[0], r.sizes[1], r.data[0], r.data[1]}, nil
	})
	if _, ok := any(*new(H)).(head010); ok { // it is new in release 0.10
		handle(d, p, "yk_erase_range", func(_ context.Context, in prefixIn[H]) (int32, error) {
			return d.reply("yk_erase_range", in.Head, func(*reply) {
				maps.DeleteFunc(d.data, func(k string, _ []byte) bool { return bytes.HasPrefix([]byte(k), in.Prefix) })
			}).ret, nil
		})
	}
	return d
}

func handle[In, Out any](d *double, p *mercury.Provider, name string, fn func(context.Context, In) (Out, error)) {
	mercury.DefineMargo[In, Out](name).HandleAt(p, func(ctx context.Context, in In) (Out, error) {
		d.mu.Lock()
		d.calls[name]++
		d.mu.Unlock()
		return fn(ctx, in)
	})
}

// reply carries out a request of the modes in h, if the double supports them, and forges the reply.
func (d *double) reply(rpc string, h requestHead, do func(*reply)) reply {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = h
	r := reply{}
	if h.mode()&^modes != 0 {
		r.ret = int32(yokan.ErrMode)
	} else {
		do(&r)
	}
	if d.forge != nil {
		d.forge(rpc, &r)
	}
	return r
}

// pull reads what the client has lent.
func (d *double) pull(ctx context.Context, b mercury.Bulk, origin *string, offset, size uint64) []byte {
	assert.Nil(d.t, origin, "the memory is the caller's")
	buf := make([]byte, size)
	_, err := mercury.RequestOf(ctx).Remote(b).Get(ctx, buf, int64(offset))
	assert.NoError(d.t, err)
	return buf
}

// push writes to what the client has lent.
func (d *double) push(ctx context.Context, b mercury.Bulk, offset uint64, data []byte) {
	_, err := mercury.RequestOf(ctx).Remote(b).Put(ctx, data, int64(offset))
	assert.NoError(d.t, err)
}

// bulkKeys carries out a request whose memory has the sizes of keys, the keys, and room for an answer.
func bulkKeys[H requestHead](ctx context.Context, d *double, rpc string, in bulkIn[H], do func([][]byte, *reply)) (int32, error) {
	mem := d.pull(ctx, in.Mem, in.Origin, in.Offset, in.Size)
	sizes, mem := decodeNumbers(mem[:8*in.Count]), mem[8*in.Count:]
	var keys [][]byte
	r := d.reply(rpc, in.Head, func(r *reply) {
		keys = splitItems(sizes, mem, r)
		do(keys, r)
	})
	if r.ret == 0 && rpc != "yk_erase" {
		d.push(ctx, in.Mem, in.Offset+8*in.Count+uint64(totalSize(keys)), append(encodeNumbers(r.sizes[0]), r.flags...))
	}
	return r.ret, nil
}

func decodeNumbers(b []byte) (all []uint64) {
	for ; len(b) > 0; b = b[8:] {
		all = append(all, binary.LittleEndian.Uint64(b))
	}
	return all
}

func encodeNumbers(all []uint64) (b []byte) {
	for _, n := range all {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func totalSize(items [][]byte) (n int) {
	for _, b := range items {
		n += len(b)
	}
	return n
}

// splitItems returns the items in b.
func splitItems(sizes []uint64, b []byte, r *reply) (items [][]byte) {
	for _, n := range sizes {
		if n > uint64(len(b)) {
			r.ret = int32(yokan.ErrInvalidArgs)
			return nil
		}
		items, b = append(items, b[:n]), b[n:]
	}
	return items
}

func (d *double) exists(keys [][]byte, r *reply) {
	r.flags = make([]byte, (len(keys)+7)/8)
	for i, k := range keys {
		if _, ok := d.data[string(k)]; ok {
			r.flags[i/8] |= 1 << (i % 8)
		}
	}
}

func (d *double) lengths(keys [][]byte, r *reply) {
	for _, k := range keys {
		n := uint64(absent)
		if v, ok := d.data[string(k)]; ok {
			n = uint64(len(v))
		}
		r.sizes[0] = append(r.sizes[0], n)
	}
}

func (d *double) erase(keys [][]byte) {
	for _, k := range keys {
		delete(d.data, string(k))
	}
}

func (d *double) put(mode yokan.Mode, keys, values [][]byte, r *reply) {
	if len(keys) != len(values) {
		r.ret = int32(yokan.ErrInvalidArgs)
		return
	}
	for i, k := range keys {
		old, ok := d.data[string(k)]
		refusal := yokan.Code(0)
		switch {
		case ok && mode&yokan.NewOnly != 0:
			refusal = yokan.ErrKeyExists
		case !ok && mode&yokan.ExistOnly != 0:
			refusal = yokan.ErrKeyNotFound
		case mode&yokan.Append != 0:
			d.data[string(k)] = slices.Concat(old, values[i])
		default:
			d.data[string(k)] = bytes.Clone(values[i])
		}
		if len(keys) == 1 {
			r.ret = int32(refusal)
		}
	}
}

// get fills rooms: one for all values, or one for each.
func (d *double) get(mode yokan.Mode, keys [][]byte, rooms []uint64, r *reply) {
	packed, full := len(rooms) == 1, false
	for i, k := range keys {
		v, ok := d.data[string(k)]
		n := uint64(len(v))
		at := i
		if packed {
			at = 0
		}
		switch {
		case !ok:
			n, v = absent, nil
		case full || n > rooms[at]:
			n, v, full = tooSmall, nil, packed
		case packed:
			rooms[0] -= n
		}
		r.sizes[0] = append(r.sizes[0], n)
		if r.data[0] = append(r.data[0], v...); !packed {
			r.data[0] = append(r.data[0], make([]byte, rooms[at]-uint64(len(v)))...)
		}
	}
	if mode&yokan.Consume != 0 {
		d.erase(keys)
	}
}

func (d *double) list(mode yokan.Mode, from, filter []byte, count uint64, rooms [2]uint64, r *reply) {
	has := bytes.HasPrefix
	if mode&yokan.Suffix != 0 {
		has = bytes.HasSuffix
	}
	for _, k := range slices.Sorted(maps.Keys(d.data)) {
		key := []byte(k)
		order := bytes.Compare(key, from)
		if order < 0 || order == 0 && mode&yokan.Inclusive == 0 || !has(key, filter) || uint64(len(r.sizes[0])) == count {
			continue
		}
		switch {
		case mode&yokan.IgnoreKeys != 0:
			key = nil
		case mode&yokan.NoPrefix != 0:
			key = key[len(filter):]
		}
		for i, b := range [][]byte{key, d.data[k]} {
			n := uint64(len(b))
			if n > rooms[i] {
				r.sizes[i], rooms[i] = append(r.sizes[i], tooSmall), 0
				continue
			}
			rooms[i] -= n
			r.sizes[i], r.data[i] = append(r.sizes[i], n), append(r.data[i], b...)
		}
	}
	for i := range r.sizes {
		for uint64(len(r.sizes[i])) < count {
			r.sizes[i] = append(r.sizes[i], noMore)
		}
	}
}
