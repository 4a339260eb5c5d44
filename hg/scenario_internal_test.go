package hg

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestPullCanceledBetweenPieces checks a cancel between two pieces of a body, which found no
// operation in flight and was lost.
func TestPullCanceledBetweenPieces(t *testing.T) {
	p := &pull{canceled: true, key: na.Key{Len: 1 << 20}}
	require.ErrorIs(t, p.fetchNextLocked(), ErrCanceled)
}

// TestNameCollision checks that the error for two names with one id has both names.
func TestNameCollision(t *testing.T) {
	c := &Class{}
	c.rpcs.init()
	c.rpcs.hash = func(string) ID { return 7 }
	_, err := c.Register("one", nil)
	require.NoError(t, err)
	_, err = c.Register("two", nil)
	require.ErrorIs(t, err, na.ErrExists)
	require.ErrorContains(t, err, `"one"`)
	require.ErrorContains(t, err, `"two"`)
}

// TestShutdownErrorText checks that the operations that were cut off are counted in words; when
// nothing is left the text is the reason.
func TestShutdownErrorText(t *testing.T) {
	require.EqualError(t, &ShutdownError{Calls: 2, Handlers: 1, Open: []string{"handler of x"}, Err: ErrTimeout},
		"hg: shutdown: 2 calls, 1 handler left (handler of x): "+ErrTimeout.Error())
	require.EqualError(t, &ShutdownError{Handlers: 3, Open: []string{"handler of x", "handler of y", "handler of x"}, Err: ErrTimeout},
		"hg: shutdown: 3 handlers left (handler of x (2 times); handler of y): "+ErrTimeout.Error())
	for n, want := range map[int]string{
		maxOpen - 1: "hg: shutdown: 31 handlers left (handler of x (31 times)): ",
		maxOpen:     "hg: shutdown: 32 handlers left (handler of x): ", // there may be more than Open has
		100:         "hg: shutdown: 100 handlers left (handler of x): ",
	} {
		e := &ShutdownError{Handlers: n, Err: ErrTimeout}
		for range n {
			e.addOpen("handler of x")
		}
		require.EqualError(t, e, want+ErrTimeout.Error())
	}
	require.EqualError(t, &ShutdownError{Err: context.DeadlineExceeded}, "hg: shutdown: context deadline exceeded")
}

// TestShutdownKeepsReason checks that a second Shutdown does not replace the reason of the first one:
// when the second one begins, the handlers that the first one has interrupted may have ended.
func TestShutdownKeepsReason(t *testing.T) {
	_, c, _, _ := newIsolatedContext(t)
	half := func(ctx context.Context) { // a Shutdown that is held before it closes c
		e := na.Shutdown{Drain: c.nctx.Drain, Close: func() {}, Closed: c.nctx.Closed}
		_ = shutdown(ctx, []*Context{c}, e, func() int64 { return 0 })
	}
	cause := errors.New("the cause")
	ctx, stop := context.WithCancelCause(context.Background())
	stop(cause)
	c.admission.active.Add(1) // a handler
	half(ctx)
	c.admission.active.Add(-1)
	require.ErrorContains(t, c.closeReason(), "interrupted by the shutdown of the process")
	half(context.Background())
	require.ErrorContains(t, c.closeReason(), cause.Error())
}

// TestFateOfTheLent checks the fate of a one-way call whose loan has failed: the target may have
// reported which messages of that session it has taken.
func TestFateOfTheLent(t *testing.T) {
	peer := na.MakeAddr("sim://there", 0).Bound(7)
	for _, c := range []struct {
		name    string
		r, lent na.Result
		want    na.Fate
	}{
		{"it did not leave", na.Result{Err: na.ErrUnreachable, Fate: na.NotRun}, na.Result{}, na.NotRun},
		{"it left, nobody knows more", na.Result{Addr: peer, ID: 3}, na.Result{Err: na.ErrPeerLost}, na.MaybeRan},
		{"it was taken", na.Result{Addr: peer, ID: 3}, na.Result{Err: na.ErrPeerLost, Addr: peer, ID: 4}, na.MaybeRan},
		{"it was not", na.Result{Addr: peer, ID: 3}, na.Result{Err: na.ErrPeerLost, Addr: peer, ID: 3}, na.NotRun},
		{"another session", na.Result{Addr: peer, ID: 3}, na.Result{Err: na.ErrPeerLost, Addr: peer.Named().Bound(8), ID: 3}, na.MaybeRan},
	} {
		k := &call{callState: callState{opResult: c.r, loanResult: c.lent}}
		require.Equal(t, c.want, k.fateLocked(), c.name)
	}
}

// TestIdentitiesDoNotRepeat checks that a slot whose generations are used up is never used again:
// no identity repeats.
func TestIdentitiesDoNotRepeat(t *testing.T) {
	c := &Context{}
	h := &Handle{ctx: c}
	k := &call{h: h}
	k.slot, k.gen = c.takeSlot()
	k.gen = maxGen - 2
	seen := map[na.Tag]bool{}
	for range 10 {
		require.NoError(t, k.nextTag())
		tag := k.tag()
		require.False(t, seen[tag], "%#x", tag)
		require.Zero(t, tag&loanTag)
		seen[tag] = true
	}
	require.EqualValues(t, 1, k.slot)
}

// TestAbandonMarksTheRecord checks that an abandon marks the record of its message, whatever
// identity the origin has given the call, until that is answered; the record then serves another
// request, with no state of the earlier one.
func TestAbandonMarksTheRecord(t *testing.T) {
	cls, c, id, _ := newIsolatedContext(t)
	requests := receiveFrom(t, c, 1, 1, 257)
	var ctxs [3]context.Context
	var all [3]*service
	for i, env := range requests {
		s := c.newService(env)
		require.Same(t, &s.message, env)
		s.rpc = cls.rpcs.findRPC(id)
		s.mu.Lock()
		g := s.newHandlerContextLocked()
		s.handlerCtx = g
		s.mu.Unlock()
		ctxs[i], all[i] = g.ctx, s
	}
	for range 3 {
		c.markAbandoned(requests[1])
	}
	require.EqualValues(t, 1, c.nctx.Upper().Queued())
	c.Trigger(0)
	require.NoError(t, ctxs[0].Err(), "another call of the same identity")
	require.ErrorIs(t, context.Cause(ctxs[1]), ErrCanceled)
	require.NoError(t, ctxs[2].Err())
	c.markAbandoned(requests[2])
	require.NoError(t, c.nctx.Timer(all[0].send, time.Hour))
	for _, s := range all {
		s.mu.Lock()
		s.setPhaseLocked(serviceAnswered) // no call waits for an answer
		s.mu.Unlock()
		s.releaseHold()
		require.False(t, s.abandoned.Load())
	}
	c.Trigger(0) // the last one was queued, and is over
	require.Zero(t, c.handles.Load())
}

func FuzzRequest(f *testing.F) {
	b := make([]byte, requestSize)
	(&request{id: 7, size: 3, codec: codec.MsgpackID}).writeHeader(b)
	beginnings.Seed(f, append(bytes.Clone(b), "abc"...))
	beginnings.Seed(f, append(bytes.Clone(b), "abcd"...))
	m, err := Metadata{}.With("trace", "1234")
	require.NoError(f, err)
	(&request{id: 7, size: 1, codec: codec.RawID, meta: len(m.b)}).writeHeader(b)
	beginnings.Seed(f, append(append(bytes.Clone(b), m.b...), 'x'))
	(&request{id: 7, size: 1 << 40, flags: flagMore | flagOneWay, budget: 1, codec: 200}).writeHeader(b)
	beginnings.Seed(f, na.Key{Len: 1 << 40, Access: na.ReadOnly}.Append(bytes.Clone(b)))
	beginnings.Seed(f, na.Key{Len: 1, Access: na.ReadOnly}.Append(bytes.Clone(b)))
	(&request{id: 7, size: 5, flags: flagMore | flagAhead, codec: codec.RawID, meta: 4096}).writeHeader(b)
	beginnings.Seed(f, na.Key{Len: 4101, Access: na.ReadOnly}.Append(bytes.Clone(b)))
	streams := nameStreams([]StreamSpec{{Up: true}, {Bulk: true}, {Up: true, Bulk: true}})
	streams.first = 1 << 60
	long := make([]byte, requestSize+streamsSize)
	(&request{id: 7, size: 3, codec: codec.MsgpackID, named: streams}).writeHeader(long)
	beginnings.Seed(f, append(bytes.Clone(long), "abc"...))
	long[streamAt+8] = 4
	beginnings.Seed(f, append(bytes.Clone(long), "abc"...))
	beginnings.Seed(f, b[:requestSize-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		var r request
		meta, payload, err := r.parse(b, nil)
		if err != nil {
			require.NotEqual(t, na.OK, na.CodeOf(err))
			return
		}
		again := make([]byte, frontSize(r.named.count))
		r.writeHeader(again)
		b = withoutFields(b, fieldsAt, len(again))
		require.Equal(t, b, append(append(again, meta...), payload...))
		requireReusableMeta(t, meta)
		require.Zero(t, r.flags&^(flagMore|flagOneWay|flagAhead))
		if r.flags&flagMore != 0 {
			n := metaAhead(r.flags, r.meta)
			require.True(t, n == 0 || n <= maxMeta+maxOwnMeta && len(meta) == 0)
			if key, err := bodyKey(payload, n, r.size); err == nil {
				require.GreaterOrEqual(t, key.Len, n)
				require.EqualValues(t, r.size, key.Len-n)
			}
		} else {
			require.EqualValues(t, r.size, len(payload))
		}
	})
}

func FuzzResponse(f *testing.F) {
	b := make([]byte, responseSize)
	(&response{code: 3, size: 6, codec: codec.RawID}).writeHeader(b)
	beginnings.Seed(f, append(bytes.Clone(b), "\x03\x00abcd"...))
	m, err := Metadata{}.With("trace", "1234")
	require.NoError(f, err)
	refused := appendFailure(nil, "quota", []byte("detail"))
	(&response{code: codes.ErrExhausted, fate: na.NotRun, size: uint64(len(refused)), codec: codec.MsgpackID, meta: len(m.b)}).writeHeader(b)
	beginnings.Seed(f, append(append(bytes.Clone(b), m.b...), refused...))
	(&response{size: 9, fate: na.Ran, flags: flagMore, codec: codec.MsgpackID}).writeHeader(b)
	beginnings.Seed(f, na.Key{Len: 9, Access: na.ReadOnly}.Append(bytes.Clone(b)))
	(&response{size: 9, fate: na.Ran, flags: flagMore | flagAhead, codec: codec.MsgpackID, meta: 4096}).writeHeader(b)
	beginnings.Seed(f, na.Key{Len: 4105, Access: na.ReadOnly}.Append(bytes.Clone(b)))
	beginnings.Seed(f, b[:responseSize-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		var r response
		meta, payload, err := r.parse(b, nil)
		if err != nil {
			require.NotEqual(t, na.OK, na.CodeOf(err))
			return
		}
		again := make([]byte, responseSize)
		b[3] = byte(r.fate) // an unknown one contains nothing
		r.writeHeader(again)
		b = withoutFields(b, 7, responseSize)
		require.Equal(t, b, append(append(again, meta...), payload...))
		requireReusableMeta(t, meta)
		if r.code != na.OK {
			e := r.remoteError(payload, codec.Msgpack)
			require.Equal(t, payload, appendFailure(nil, e.Text, e.detail))
			require.Equal(t, r.fate == na.NotRun, e.Refused)
		}
	})
}

// withoutFields returns a message whose header, front bytes, has at fields the number of fields
// behind it, without these.
func withoutFields(b []byte, fields, front int) []byte {
	n := int(b[fields]) * fieldSize
	b = bytes.Clone(b)
	b[fields] = 0
	return slices.Delete(b, front, front+n)
}

// requireReusableMeta requires that metadata which was let in can be given again.
func requireReusableMeta(t *testing.T, b []byte) {
	var again []byte
	n := 0
	for name, value := range (Metadata{b}).All() {
		again = appendEntry(again, name, value)
		n++
	}
	require.LessOrEqual(t, n, maxEntries+maxOwnEntries)
	require.Equal(t, string(b[:len(again)]), string(again))
	require.Less(t, len(b)-len(again), metaWord)
}

// TestHeaderBytes checks the bytes of the headers against docs/internals/WIRE.md.
func TestHeaderBytes(t *testing.T) {
	m, err := Metadata{}.With("a.b", "xyz")
	require.NoError(t, err)
	require.Equal(t, "\x03a.b\x03\x00xyz\x00\x00\x00\x00\x00\x00\x00", string(m.b))
	b := make([]byte, requestSize)
	(&request{flags: flagOneWay, codec: 200, meta: len(m.b), budget: 0x01020304, id: 0x1122334455667788, size: 5}).writeHeader(b)
	require.Equal(t, "\x04\x02\xc8\x02\x04\x03\x02\x01\x88\x77\x66\x55\x44\x33\x22\x11\x05\x00\x00\x00\x00\x00\x00\x00", string(b))
	b = make([]byte, responseSize)
	(&response{code: 0x42, fate: na.NotRun, codec: codec.MsgpackID, meta: len(m.b), size: 5}).writeHeader(b)
	require.Equal(t, "\x04\x00\x42\x01\x02\x02\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00", string(b))
	b = make([]byte, requestSize)
	(&request{flags: flagMore | flagAhead, room: 3, codec: 200, meta: 8192, size: 5}).writeHeader(b)
	require.Equal(t, "\x04\x9d\xc8\x00", string(b[:4]))
	b = make([]byte, responseSize)
	(&response{fate: na.Ran, flags: flagMore | flagAhead, codec: 200, meta: 8184, size: 5}).writeHeader(b)
	require.Equal(t, "\x04\x11\x00\x02\xc8\xff\x03\x00", string(b[:8]))
	b = make([]byte, requestSize+streamsSize)
	streams := nameStreams([]StreamSpec{{Up: true}, {}, {Up: true, Bulk: true}})
	streams.first = 0x0102
	(&request{size: 5, named: streams}).writeHeader(b)
	require.Equal(t, "\x05\x00\x00\x00\x00\x00\x00\x03\x02\x01\x00\x00\x00\x00\x00\x00\x01\x03\x00\x00\x00\x00\x00\x00", string(b[16:]))
	require.Equal(t, "\x04\x00textdetail", string(appendFailure(nil, "text", []byte("detail"))))
}

// TestBadMeta checks that malformed metadata of a peer is refused, wherever it is wrong.
func TestBadMeta(t *testing.T) {
	entry := func(name, value string) []byte { return appendEntry(nil, name, value) }
	pad := func(b []byte, to int) []byte { return append(b, make([]byte, to-len(b))...) }
	var many, most []byte
	for i := range byte(maxEntries + maxOwnEntries + 1) {
		if i < maxEntries+maxOwnEntries {
			most = append(most, entry(string('a'+i), "")...)
		}
		many = append(many, entry(string('a'+i), "")...)
	}
	for name, b := range map[string][]byte{
		"none": {}, "one": pad(entry("a", "b"), 8), "exact": entry("abcd", "e"), "unknown of ours": pad(entry("qs-new", "x"), 16),
		"most": pad(most, 80), "as long as can be": entry("a", strings.Repeat("x", maxMeta+maxOwnMeta-4)),
	} {
		require.NoError(t, checkMeta(b), name)
	}
	for name, b := range map[string][]byte{
		"a name twice":      pad(append(entry("a", ""), entry("a", "")...), 8),
		"a capital":         pad(entry("A", ""), 8),
		"a zero":            pad(entry("a\x00", ""), 8),
		"a long name":       pad(entry(strings.Repeat("a", 64), ""), 72),
		"too many":          pad(many, 88),
		"a value cut off":   {1, 'a', 200, 0, 0, 0, 0, 0},
		"a name cut off":    {60, 'a', 'a', 'a', 'a', 'a', 'a', 'a'},
		"a length cut off":  {6, 'a', 'a', 'a', 'a', 'a', 'a', 'a'},
		"padding of a word": pad(entry("a", "b"), 16),
		"only padding":      make([]byte, 8),
		"padding not zero":  {1, 'a', 0, 0, 0, 0, 0, 1},
	} {
		require.ErrorIs(t, checkMeta(b), na.ErrProtocol, name)
	}
}

// TestIdentitiesHaveALimit checks that a context has 2²⁴ identities of calls; one handle more
// cannot be forwarded.
func TestIdentitiesHaveALimit(t *testing.T) {
	c := &Context{slots: make([]uint64, maxSlot, maxSlot+2)}
	h := &Handle{ctx: c}
	last, more := &call{h: h}, &call{h: h}
	last.slot, last.gen = c.takeSlot()
	more.slot, more.gen = c.takeSlot()
	require.NoError(t, last.nextTag())
	tag := last.tag()
	require.EqualValues(t, maxSlot, tag&maxSlot)
	require.ErrorIs(t, more.nextTag(), ErrAgain)
	require.ErrorContains(t, more.nextTag(), "too many handles")
}

// TestUnknownBits checks that no unknown bit is accepted, whatever else the header has; nor is one
// that others contradict (F82).
func TestUnknownBits(t *testing.T) {
	for flags := range 256 {
		b := make([]byte, requestSize)
		(&request{id: 7}).writeHeader(b)
		b[1] = byte(flags)
		if flags&flagMore != 0 {
			b[2], b[16] = codec.RawID, 1
			b = append(b, make([]byte, na.KeySize)...)
		}
		var r request
		_, _, err := r.parse(b, nil)
		words := flags >> metaShift << 8
		ahead, more := flags&flagAhead != 0, flags&flagMore != 0
		require.Equal(t, !ahead && words == 0 || ahead && more && words > 0 && words <= 1024+256, err == nil, "request flags %#x: %v", flags, err)
		require.Equal(t, uint8(flags), r.flags|uint8(r.room)<<roomShift|uint8(r.meta/metaWord>>8)<<metaShift)

		b = make([]byte, responseSize)
		(&response{}).writeHeader(b)
		b[1] = byte(flags)
		if flags&flagMore != 0 {
			b[4], b[8] = codec.RawID, 1
			b = append(b, make([]byte, na.KeySize)...)
		}
		_, _, err = new(response).parse(b, nil)
		require.Equal(t, flags&^flagMore == 0, err == nil, "response flags %#x: %v", flags, err)
	}
	for bit := range 8 { // metadata that is not there
		b := make([]byte, responseSize)
		(&response{}).writeHeader(b)
		b[6] = 1 << bit
		_, _, err := new(response).parse(b, nil)
		require.ErrorIs(t, err, na.ErrProtocol)
	}
	for count := range 256 { // streams: four bits each, of which two have a meaning
		for bit := range 64 {
			b := make([]byte, requestSize+streamsSize)
			(&request{id: 7}).writeHeader(b)
			b[countAt], b[streamAt+8+bit/8] = byte(count), 1<<(bit%8)
			var r request
			_, _, err := r.parse(b, nil)
			known := count <= na.MaxStreams && bit/4 < count && bit%4 < 2
			require.Equal(t, known, err == nil, "%d streams, bit %d: %v", count, bit, err)
			require.Equal(t, known, r.named.count > 0)
			b[1] |= flagOneWay
			_, _, err = r.parse(b, nil)
			require.Error(t, err, "a one-way request with streams")
			_, _, err = r.parse(b[:len(b)-1], nil)
			require.Error(t, err)
		}
	}
	for _, at := range []int{2, 3} { // a codec without bytes, metadata that is not there
		b := make([]byte, requestSize)
		(&request{id: 7}).writeHeader(b)
		b[at] = 1
		_, _, err := new(request).parse(b, nil)
		require.ErrorIs(t, err, na.ErrProtocol, "byte %d", at)
	}
	for fate := 3; fate < 256; fate++ {
		b := make([]byte, responseSize)
		(&response{fate: na.Fate(fate)}).writeHeader(b)
		var r response
		_, _, err := r.parse(b, nil)
		require.NoError(t, err, "fate %d", fate)
		require.Equal(t, na.MaybeRan, r.fate, "a fate of a later release is unknown")
	}
}

// TestLaterFields checks that the fields that a later release has put behind a header are skipped,
// wherever they begin, unless they have to be understood; and no other byte changes its meaning.
func TestLaterFields(t *testing.T) {
	m, err := Metadata{}.With("trace", "1234")
	require.NoError(t, err)
	streams := nameStreams([]StreamSpec{{Up: true}, {Bulk: true}})
	for name, req := range map[string]request{
		"plain":    {id: 7, size: 3, codec: codec.RawID, budget: 5},
		"metadata": {id: 7, size: 3, codec: codec.RawID, meta: len(m.b)},
		"streams":  {id: 7, size: 3, codec: codec.RawID, meta: len(m.b), named: streams},
	} {
		t.Run(name, func(t *testing.T) {
			front := make([]byte, frontSize(req.named.count))
			req.writeHeader(front)
			behind := append(bytes.Clone(m.b[:req.meta]), "abc"...)
			var want, got request
			_, _, err := want.parse(append(bytes.Clone(front), behind...), nil)
			require.NoError(t, err)
			for _, words := range []int{1, 2, 127} {
				b := append(append(bytes.Clone(front), make([]byte, words*fieldSize)...), behind...)
				b[fieldsAt] = byte(words)
				meta, payload, err := got.parse(b, nil)
				require.NoError(t, err)
				require.Equal(t, want, got)
				require.Equal(t, m.b[:req.meta], meta)
				require.Equal(t, "abc", string(payload))
				b[fieldsAt] |= mustUnderstand
				_, _, err = got.parse(b, nil)
				require.ErrorIs(t, err, na.ErrVersion)
				require.Equal(t, ID(7), got.id, "it can be answered")
			}
			short := append(bytes.Clone(front), behind...)
			short[fieldsAt] = 127
			_, _, err = got.parse(short, nil)
			require.ErrorIs(t, err, na.ErrProtocol)
		})
	}
	resp := make([]byte, responseSize)
	(&response{fate: na.Ran, size: 3, codec: codec.RawID, meta: len(m.b)}).writeHeader(resp)
	behind := append(bytes.Clone(m.b), "abc"...)
	var got response
	for _, words := range []int{1, 127} {
		b := append(append(bytes.Clone(resp), make([]byte, words*fieldSize)...), behind...)
		b[7] = byte(words)
		meta, payload, err := got.parse(b, nil)
		require.NoError(t, err)
		require.Equal(t, m.b, meta)
		require.Equal(t, "abc", string(payload))
		require.Equal(t, na.Ran, got.fate)
		b[7] |= mustUnderstand
		_, _, err = got.parse(b, nil)
		require.ErrorIs(t, err, na.ErrVersion)
	}
	resp[7] = 1
	_, _, err = got.parse(append(resp, "1234567"...), nil)
	require.ErrorIs(t, err, na.ErrProtocol)
}

// TestByteLimit checks that the bytes that expedited requests lend and fetch are counted
// separately, and up to 65 KiB of them is never refused.
func TestByteLimit(t *testing.T) {
	const limit = 1 << 20
	var b byteLimit
	ordinary, expedited := account{}, account{expedited: true}
	acquire := func(n int64, a account) error { return b.acquire(n, limit, a, "lent", "MaxLent") }
	require.NoError(t, acquire(limit, ordinary))
	require.ErrorIs(t, acquire(1, ordinary), ErrAgain)
	require.NoError(t, acquire(limit, expedited), "the ordinary ones do not count")
	require.ErrorIs(t, acquire(na.MaxRoom+1, expedited), ErrAgain)
	require.NoError(t, acquire(na.MaxRoom, expedited), "it is no longer than a message may be")
	require.EqualValues(t, 2*limit+na.MaxRoom, b.total())
	b.release(limit, ordinary)
	require.NoError(t, acquire(limit, ordinary), "the expedited ones do not count")
	b.release(limit, ordinary)
	b.release(limit, expedited)
	b.release(na.MaxRoom, expedited)
	require.Zero(t, b.total())
}

// TestByteLimitOfSession checks that a session has up to three quarters of the bytes that others
// leave, and its first whenever there is so much; bytes for calls of this side have no share, and
// nothing is kept of a session that holds nothing.
func TestByteLimitOfSession(t *testing.T) {
	const limit = 64 << 10
	var b byteLimit
	acquire := func(n int64, session uint64) error {
		return b.acquire(n, limit, account{session: session}, "lent", "MaxLent")
	}
	require.NoError(t, acquire(limit, 1), "the first of a session")
	b.release(limit, account{session: 1})
	for range 3 {
		require.NoError(t, acquire(limit/4, 1))
	}
	err := acquire(1, 1)
	require.ErrorIs(t, err, ErrAgain)
	require.ErrorContains(t, err, "49152 bytes lent, 49152 of them by this session: 1 more exceed its share of Config.MaxLent of 65536")
	require.NoError(t, acquire(limit/8, 2))
	require.NoError(t, acquire(limit/16, 2), "three quarters of what the first leaves")
	require.ErrorContains(t, acquire(1, 2), "by this session")
	require.NoError(t, acquire(limit/16-1, 0))
	require.NoError(t, acquire(1, 0), "calls of this side take what is left")
	require.ErrorContains(t, acquire(1, 3), "65536 bytes lent, 1 more exceed Config.MaxLent of 65536")
	b.release(3*(limit/4), account{session: 1})
	b.release(limit/16, account{session: 2})
	b.release(limit/8, account{session: 2})
	b.release(limit/16, account{})
	require.Zero(t, b.total())
	require.Empty(t, b.ordinary.of)
}
