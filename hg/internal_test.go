package hg

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A cancel between two pieces of a body found no operation under way, and was forgotten.
func TestPullCanceledBetweenPieces(t *testing.T) {
	p := &pull{canceled: true, key: na.Key{Len: 1 << 20}}
	require.ErrorIs(t, p.next(), ErrCanceled)
}

// Two names of one id: both are named.
func TestCollision(t *testing.T) {
	c := &Class{}
	c.rpcs.init()
	c.rpcs.hash = func(string) ID { return 7 }
	_, err := c.Register("one", nil)
	require.NoError(t, err)
	_, err = c.Register("two", nil)
	require.ErrorIs(t, err, ErrExists)
	require.ErrorContains(t, err, `"one"`)
	require.ErrorContains(t, err, `"two"`)
}

// The fate of a call follows from its send: a receive that could not be posted says nothing about a request that left.
func TestFateFollowsTheSend(t *testing.T) {
	notRun := na.Result{Err: na.ErrUnreachable, Fate: na.NotRun}
	for _, c := range []struct {
		name           string
		sending        bool
		sent, received na.Result
		want           na.Fate
	}{
		{"send left, receive failed in dialling", true, na.Result{}, notRun, na.MaybeRan},
		{"both failed in dialling", true, notRun, notRun, na.NotRun},
		{"nothing was sent", false, na.Result{}, notRun, na.NotRun},
		{"send left, peer lost", true, na.Result{}, na.Result{Err: na.ErrPeerLost}, na.MaybeRan},
	} {
		k := &call{sending: c.sending, sent: c.sent, received: c.received}
		require.Equal(t, c.want, k.fate(), c.name)
	}
}

// A slot whose generations are used up is left for good: no identity comes back.
func TestIdentitiesDoNotComeBack(t *testing.T) {
	c := &Context{}
	h := &Handle{ctx: c}
	k := &call{h: h}
	k.slot, k.gen = c.takeSlot()
	k.gen = maxGen - 2
	seen := map[na.Tag]bool{}
	for range 10 {
		tag, err := k.nextTag()
		require.NoError(t, err)
		require.False(t, seen[tag], "%#x", tag)
		require.Zero(t, tag&loanTag)
		seen[tag] = true
	}
	require.EqualValues(t, 1, k.slot)
}

func FuzzRequest(f *testing.F) {
	b := make([]byte, requestSize)
	(&request{id: 7, size: 3}).put(b)
	f.Add(append(b, "abc"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, payload, err := parseRequest(b)
		if err != nil {
			require.NotEqual(t, na.OK, na.CodeOf(err))
			return
		}
		again := make([]byte, requestSize)
		r.put(again)
		require.Equal(t, b, append(again, payload...))
		if r.flags&flagMore != 0 {
			_, _ = bodyKey(payload, r.size)
		}
	})
}

func FuzzResponse(f *testing.F) {
	b := make([]byte, responseSize)
	(&response{code: 3, size: 3}).put(b)
	f.Add(append(b, "abc"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, payload, err := parseResponse(b)
		if err != nil {
			require.NotEqual(t, na.OK, na.CodeOf(err))
			return
		}
		again := make([]byte, responseSize)
		r.put(again)
		require.Equal(t, b, append(again, payload...))
	})
}
