//go:build unix

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestSoak: each kind of fault, and no promise broken. The seed is one whose first faults are short.
func TestSoak(t *testing.T) {
	t.Parallel()
	runSoakOver(t, "tcp", soakFaults...)
}

func runSoakOver(t *testing.T, transport string, faults ...string) {
	q := run(t, 0, "soak", "-transport", transport, "-time", long.Or("1500ms", "5s"), "-every", long.Or("75ms", "150ms"), "-peer-timeout", long.Or("1s", "2s"), "-targets", "3",
		"-inflight", "8", "-bulk", "100000", "-seed", "158")
	var r soakReport
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	t.Logf("%s", &q.out)
	require.Equal(t, uint64(158), r.Seed)
	require.Positive(t, r.Completions["success"])
	require.Positive(t, r.Completions[hg.ErrCanceled.Error()])
	require.Positive(t, r.Cancels)
	for _, kind := range faults {
		require.Positive(t, r.Faults[kind], kind)
	}
	require.Positive(t, r.PeersLost)
	require.NoError(t, r.err())
}

// TestSoakAudit: whatever is wrong is found, and said.
func TestSoakAudit(t *testing.T) {
	ran := func(tokens ...uint64) (log []byte) {
		for _, token := range tokens {
			log = binary.LittleEndian.AppendUint64(log, token)
		}
		return log
	}
	fails := func(fate na.Fate) error { return &hg.Error{Op: "forward", Fate: fate, Err: na.ErrPeerLost} }
	for name, c := range map[string]struct {
		oneWay bool
		ends   []error // nil elements are successes
		log    []byte
		want   func(*soakReport) int
		text   string
	}{
		"lost":             {want: func(r *soakReport) int { return r.Lost }, text: "1 calls have not ended"},
		"ended twice":      {ends: []error{nil, nil}, log: ran(0), want: func(r *soakReport) int { return r.Doubled }, text: "1 calls ended twice"},
		"ran twice":        {ends: []error{nil}, log: ran(0, 0), want: func(r *soakReport) int { return r.ExecutedTwice }, text: "1 calls ran twice"},
		"never ran":        {ends: []error{nil}, want: func(r *soakReport) int { return r.WrongFate }, text: "1 calls have the wrong fate"},
		"ran after all":    {ends: []error{fails(na.NotRun)}, log: ran(0), want: func(r *soakReport) int { return r.WrongFate }, text: "wrong fate"},
		"did not run":      {ends: []error{fails(na.Ran)}, want: func(r *soakReport) int { return r.WrongFate }, text: "wrong fate"},
		"unknown token":    {ends: []error{nil}, log: ran(0, 7), want: func(r *soakReport) int { return r.WrongAnswers }, text: "wrong bytes"},
		"right":            {ends: []error{nil}, log: ran(0)},
		"may have run":     {ends: []error{fails(na.MaybeRan)}, log: ran(0)},
		"may not have":     {ends: []error{fails(na.MaybeRan)}},
		"one-way got lost": {oneWay: true, ends: []error{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			l := soakLedger{outcomes: map[string]int64{}}
			token := l.begin(c.oneWay)
			for _, err := range c.ends {
				l.end(token, err)
			}
			l.heard(c.log)
			r := &soakReport{Seed: 5}
			l.audit(r)
			if c.want == nil {
				require.NoError(t, r.err())
				return
			}
			require.Equal(t, 1, c.want(r))
			require.ErrorContains(t, r.err(), c.text)
			require.ErrorContains(t, r.err(), "seed 5")
		})
	}
}

// TestSoakBadFlags: what cannot be is said before anything is started.
func TestSoakBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-targets", "1"}, {"-faults", "fire"}, {"-every", "0s"}, {"-inflight", "7"}, {"-bulk", "0"},
		{"-faults", "stall", "-transport", "sm"}} {
		err := runSoak(args, nil)
		var bad usageError
		require.True(t, errors.As(err, &bad), "%v: %v", args, err)
		require.Contains(t, bad.text, args[0])
	}
}
