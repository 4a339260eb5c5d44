package na

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlowBadFields(t *testing.T) {
	for _, c := range []struct {
		Config
		want string
	}{
		{Config{MinEnvelopes: -1}, "MinEnvelopes is -1"},
		{Config{Peers: -2}, "Peers is -2"},
		{Config{Peers: 1 << 30}, "Peers is 1073741824, want at most 16777216"},
		{Config{Need: 4097}, "Need is 4097"},
		{Config{Want: -1}, "Want is -1"},
		{Config{Need: 5, Want: 4}, "Want is 4, want Need, which is 5"},
		{Config{CreditBatch: -1}, "CreditBatch is -1"},
		{Config{CreditBatch: 33}, "CreditBatch is 33, want at most Envelopes, 32"}, // G-T16
		{Config{MinEnvelopes: 33}, "MinEnvelopes is 33, want at most Envelopes, 32"},
		{Config{OnNoCredit: 3}, "OnNoCredit is unknown value 3"},
		{Config{OnNoCredit: Fail, Reserve: 3}, "Reserve is unknown value 3"},
		{Config{Reserve: HonestReserve}, "OnNoCredit is Queue, want Fail or Block"},
		{Config{OnNoCredit: Block, Reserve: HonestReserve, Envelopes: 4096}, "Envelopes is 4096, want at most 4095"},
		{Config{Probe: -1}, "Probe is -1ns"},
	} {
		c.Plugins = []Plugin{&fakePlugin{}}
		_, err := Open("fake://x", c.Config)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, 1, strings.Count(err.Error(), "invalid argument"), "one field is bad: %v", err)
	}
}

// TestContract checks that Peers gives the number of peers for which the budget must suffice (G-T9,
// G-T10, requirements G5 to G8).
func TestContract(t *testing.T) {
	open := func(c Config) (Config, error) {
		c.Plugins = []Plugin{&fakePlugin{}}
		cls, err := Open("fake://x", c)
		if err != nil {
			return Config{}, err
		}
		defer func() { require.NoError(t, cls.Close()) }()
		return cls.Config(), nil
	}
	const each = 1024 + EnvelopeOverhead
	require.EqualValues(t, 128*33*each, GuaranteedBytes(128, 32, 1024))
	c := Config{Peers: 128, Envelopes: 32, Eager: 1024, Budget: 128 * 33 * each}
	got, err := open(c)
	require.NoError(t, err, "the budget does to the byte")
	require.Equal(t, 32, got.Envelopes)

	c.Budget--
	_, err = open(c)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorContains(t, err, "Budget is 4595711, want 4595712 for 128 peers with 32 envelopes of 1088 bytes and one for expedited messages each")

	c.MinEnvelopes = 4
	got, err = open(c)
	require.NoError(t, err)
	require.Equal(t, 31, got.Envelopes, "as many as the budget does for")
	c.Budget = 128 * 5 * each
	got, err = open(c)
	require.NoError(t, err)
	require.Equal(t, 4, got.Envelopes)
	require.Zero(t, got.CreditBatch)
	c.CreditBatch = 20
	got, err = open(c)
	require.NoError(t, err)
	require.Equal(t, 4, got.CreditBatch, "no more than there are")
	c.Budget--
	_, err = open(c)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorContains(t, err, "and one for expedited messages each: raise Budget, or lower Peers, Envelopes, MinEnvelopes (4) or Eager")

	c = Config{Peers: 10, Envelopes: 7, Eager: 1024, Budget: 10 * 9 * each, OnNoCredit: Fail, Reserve: HonestReserve}
	_, err = open(c)
	require.NoError(t, err, "with the hidden one")
	c.Budget--
	_, err = open(c)
	require.ErrorContains(t, err, "with 7 envelopes of 1088 bytes")
}

// TestGERTable has the numbers of the GER paper's example (G22 to G24, G-T23, G-T24): 4 communicators of 8 tags are 32 envelopes for each
// of 128 processes, 4,096 in all, 4 MiB of messages of 1 KiB, 16 MiB for the four processes of a node. Messages that are received in
// order need one envelope.
func TestGERTable(t *testing.T) {
	for _, c := range []struct {
		name                   string
		peers, each, processes int
		messages, reserved     int64 // bytes, on the node
	}{
		{"a process", 128, 4 * 8, 1, 4 << 20, 128 * 33 * 1088},
		{"a node of four", 128, 4 * 8, 4, 16 << 20, 4 * 128 * 33 * 1088},
		{"in order", 128, 1, 1, 128 << 10, 128 * 2 * 1088},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.messages, int64(c.processes*c.peers*c.each)*1024)
			require.Equal(t, c.reserved, int64(c.processes)*GuaranteedBytes(c.peers, c.each, 1024))
			cls, err := Open("fake://x", Config{
				Plugins: []Plugin{&fakePlugin{}}, Peers: c.peers, Envelopes: c.each, Eager: 1024, Budget: c.reserved / int64(c.processes),
			})
			require.NoError(t, err, "the budget of the table does for all peers")
			defer func() { require.NoError(t, cls.Close()) }()
			require.Equal(t, c.each, cls.Config().Envelopes)
		})
	}
}

// TestLiteralReserveWarns checks that LiteralReserve wastes one envelope, and warns of it (G-T6).
func TestLiteralReserveWarns(t *testing.T) {
	var log strings.Builder
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	cls, err := Open("fake://x", Config{Plugins: []Plugin{&fakePlugin{}}, OnNoCredit: Fail, Reserve: LiteralReserve})
	require.NoError(t, err)
	require.NoError(t, cls.Close())
	require.Contains(t, log.String(), "one envelope of each peer is reserved")
	log.Reset()
	cls, err = Open("fake://x", Config{Plugins: []Plugin{&fakePlugin{}}, OnNoCredit: Fail, Reserve: HonestReserve})
	require.NoError(t, err)
	require.NoError(t, cls.Close())
	require.Empty(t, log.String())
}

func TestFlowNames(t *testing.T) {
	require.Equal(t, "Queue Fail Block", strings.Join([]string{Queue.String(), Fail.String(), Block.String()}, " "))
	require.Equal(t, "LiteralReserve", LiteralReserve.String())
	require.Equal(t, "unknown value 9", Policy(9).String())
}

// TestBudgetHoldsOnePeer checks that a budget that is smaller than the minimum of envelopes of one
// peer is refused, and one of exactly that many bytes is not.
func TestBudgetHoldsOnePeer(t *testing.T) {
	for _, c := range []Config{{}, {MinEnvelopes: 4}, {Eager: 1024, Reserve: HonestReserve, OnNoCredit: Fail}} {
		c = c.withDefaults()
		c.Budget = GuaranteedBytes(1, c.guaranteedEnvelopes(max(c.MinEnvelopes, 1)), c.Eager)
		least := c
		require.NoError(t, least.envelopeContract())
		c.Budget--
		err := c.envelopeContract()
		require.ErrorIs(t, err, ErrNoMemory)
		require.ErrorContains(t, err, "raise Budget")
	}
}
