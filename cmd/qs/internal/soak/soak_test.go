package soak

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestAudit: whatever is wrong is found, and said.
func TestAudit(t *testing.T) {
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
		want   func(*Report) int
		text   string
	}{
		"lost":             {want: func(r *Report) int { return r.Lost }, text: "1 calls have not ended"},
		"ended twice":      {ends: []error{nil, nil}, log: ran(0), want: func(r *Report) int { return r.Doubled }, text: "1 calls ended twice"},
		"ran twice":        {ends: []error{nil}, log: ran(0, 0), want: func(r *Report) int { return r.ExecutedTwice }, text: "1 calls ran twice"},
		"never ran":        {ends: []error{nil}, want: func(r *Report) int { return r.WrongFate }, text: "1 calls have the wrong fate"},
		"ran after all":    {ends: []error{fails(na.NotRun)}, log: ran(0), want: func(r *Report) int { return r.WrongFate }, text: "wrong fate"},
		"did not run":      {ends: []error{fails(na.Ran)}, want: func(r *Report) int { return r.WrongFate }, text: "wrong fate"},
		"unknown token":    {ends: []error{nil}, log: ran(0, 7), want: func(r *Report) int { return r.WrongAnswers }, text: "wrong bytes"},
		"right":            {ends: []error{nil}, log: ran(0)},
		"may have run":     {ends: []error{fails(na.MaybeRan)}, log: ran(0)},
		"may not have":     {ends: []error{fails(na.MaybeRan)}},
		"one-way got lost": {oneWay: true, ends: []error{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger{outcomes: map[string]int64{}}
			token := l.begin(c.oneWay)
			for _, err := range c.ends {
				l.end(token, err)
			}
			l.heard(c.log)
			r := &Report{Seed: 5}
			l.audit(r)
			if c.want == nil {
				require.NoError(t, r.Err())
				return
			}
			require.Equal(t, 1, c.want(r))
			require.ErrorContains(t, r.Err(), c.text)
			require.ErrorContains(t, r.Err(), "seed 5")
		})
	}
}
