package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// joinedClient is a client after all clients have joined.
func joinedClient(t *testing.T, form protocol.Form, rank, size int) *protocol.Client {
	t.Helper()
	c, err := protocol.NewClient(protocol.ClientConfig{Form: form, Rank: rank, Auth: open})
	require.NoError(t, err)
	name := "IMPI"
	if form == protocol.Native {
		name = "JOIN"
	}
	require.NoError(t, c.Receive(join(i32(0, 0), command(name, i32(size)))))
	require.Equal(t, size, c.Size())
	c.Take()
	return c
}

// TestClientConfig (L8) checks that a client that the server would refuse does not begin.
func TestClientConfig(t *testing.T) {
	for _, c := range []struct {
		cfg protocol.ClientConfig
		why string
	}{
		{protocol.ClientConfig{Form: protocol.Strict, Rank: 32, Auth: open}, "rendezvous: rank 32 is not in 0 to 31"},
		{protocol.ClientConfig{Rank: -1, Auth: open}, "rendezvous: rank -1 is not in 0 to 65535"},
		{protocol.ClientConfig{Rank: 4, Size: 4, Auth: open}, "rendezvous: rank 4 is not in 0 to 3"},
		{protocol.ClientConfig{Form: protocol.Strict, Size: 33, Auth: open}, "rendezvous: 33 clients, want 1 to 32"},
	} {
		_, err := protocol.NewClient(c.cfg)
		require.EqualError(t, err, c.why)
	}
}

// TestClientOrder (L10, L12, L19) checks that what a client's program does in a wrong order is an
// error there, and sends nothing.
func TestClientOrder(t *testing.T) {
	c, err := protocol.NewClient(protocol.ClientConfig{Form: protocol.Strict, Auth: open})
	require.NoError(t, err)
	c.Take()
	require.ErrorContains(t, c.Submit(7, nil), "Submit before the start")
	require.ErrorContains(t, c.Done(), "Done before the start")
	require.ErrorContains(t, c.Fini(), "Fini before the end of the startup")

	c = joinedClient(t, protocol.Strict, 0, 2)
	require.ErrorContains(t, c.Submit(0, nil), "want ascending positive labels")
	require.ErrorContains(t, c.Submit(-1, nil), "want ascending positive labels")
	require.ErrorContains(t, c.Submit(7, make([]byte, 1<<20+1)), "limit 1048576")
	out, _ := c.Take()
	require.Empty(t, out)
	require.NoError(t, c.Submit(7, []byte("a")))
	require.ErrorContains(t, c.Submit(7, nil), "want ascending positive labels")
	require.NoError(t, c.Done())
	require.ErrorContains(t, c.Submit(8, nil), "or after Done")
	require.ErrorContains(t, c.Done(), "called twice")
	out, _ = c.Take()
	require.Equal(t, join(coll(7, 'a'), command("DONE")), out)
}

// TestClientIgnoresOtherLabels (L17, L-T7) checks that labels that a client has not requested are
// skipped.
func TestClientIgnoresOtherLabels(t *testing.T) {
	c := joinedClient(t, protocol.Strict, 0, 2)
	require.NoError(t, c.Submit(7, []byte("a")))
	require.NoError(t, c.Receive(join(set(3, 2, "x"), set(5, 2, ""), set(7, 3, "ab"), set(9, 2, "y"))))
	_, sets := c.Take()
	var labels []protocol.Label
	for _, s := range sets {
		labels = append(labels, s.Label)
	}
	require.Equal(t, []protocol.Label{3, 5, 7, 9}, labels)
	require.Equal(t, "ab", string(sets[2].Data))
	require.Nil(t, sets[2].Parts())
}

// TestClientRank31 (L-T12) checks that the mask is 32 bits, whatever the sign.
func TestClientRank31(t *testing.T) {
	c := joinedClient(t, protocol.Strict, 31, 32)
	require.NoError(t, c.Submit(7, []byte("z")))
	require.NoError(t, c.Receive(set(7, 1<<31, "z")))
	_, sets := c.Take()
	require.Equal(t, protocol.Mask{1 << 31}, sets[0].Mask)
	require.True(t, sets[0].Mask.Has(31))
	require.Equal(t, 1, sets[0].Mask.Count())
}

// TestBadServer (L15, L16, L20, L27) checks that an invalid message of a server ends the client,
// with nothing allocated for an announced length.
func TestBadServer(t *testing.T) {
	for name, word := range map[string][]byte{
		"label zero":                  set(0, 3, ""),
		"negative label":              set(-3, 3, ""),
		"empty mask":                  set(3, 0, ""),
		"rank beyond the size":        set(3, 4, "x"),
		"mask bit 31":                 set(3, 1<<31, "x"),
		"without our part":            set(7, 2, "b"),
		"our part of another label":   set(3, 3, "ab"),
		"our label passed over":       set(8, 2, "b"),
		"not ascending":               join(set(3, 2, ""), set(3, 2, "")),
		"too short":                   command("COLL", i32(7)),
		"negative length":             join([]byte("COLL"), i32(-1)),
		"longest length":              join([]byte("COLL"), i32(0x7FFFFFFF)),
		"DONE before ours":            command("DONE"),
		"size again":                  command("IMPI", i32(2)),
		"FINI":                        command("FINI"),
		"ABRT in IMPI":                command("ABRT", i32(0)),
		"optional command in IMPI":    command("\xd7HAT"),
		"unknown":                     command("WHAT"),
		"an answer to AUTH once more": i32(0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			c := joinedClient(t, protocol.Strict, 0, 2)
			require.NoError(t, c.Submit(7, []byte("a")))
			err := c.Receive(word)
			require.ErrorIs(t, err, protocol.ErrViolation)
			require.ErrorIs(t, c.Submit(8, nil), err)
			require.ErrorIs(t, c.Receive(nil), err)
			require.ErrorIs(t, c.Done(), err)
			require.ErrorIs(t, c.Fini(), err)
		})
	}
	for name, size := range map[string][]byte{
		"no clients": i32(0), "fewer than our rank": i32(1), "33 in IMPI": i32(33), "negative": i32(-2), "long": i32(2, 2),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := protocol.NewClient(protocol.ClientConfig{Form: protocol.Strict, Rank: 1, Auth: open})
			require.NoError(t, err)
			require.ErrorIs(t, c.Receive(join(i32(0, 0), command("IMPI", size))), protocol.ErrViolation)
		})
	}
}

// TestBadLengths checks that the lengths of parts must fit the mask and the bytes.
func TestBadLengths(t *testing.T) {
	for name, payload := range map[string][]byte{
		"negative":   join(i32(7, 3, 1, -1)),
		"too long":   join(i32(7, 3, 1, 5), []byte("abc")),
		"overflow":   join(i32(7, 3, 0x7FFFFFFF, 0x7FFFFFFF), []byte("abc")),
		"left over":  join(i32(7, 3, 1, 1), []byte("abc")),
		"no lengths": join(i32(7, 3, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			c := joinedClient(t, protocol.Native, 0, 2)
			require.NoError(t, c.Submit(7, []byte("a")))
			require.ErrorIs(t, c.Receive(command("COLL", payload)), protocol.ErrViolation)
		})
	}
}
