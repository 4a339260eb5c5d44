package ledger

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestAudit checks that every violation is found, and reported.
func TestAudit(t *testing.T) {
	const id = ID(3<<perOrigin | 1)
	fails := func(fate na.Fate) error { return &hg.Error{Op: "forward", Fate: fate, Err: na.ErrPeerLost} }
	ran := func(b *Book) { b.addRun(id); b.addDone(id) }
	for name, c := range map[string]struct {
		died bool
		do   func(b *Book)
		text string // of what is wrong
	}{
		"no end":             {do: func(b *Book) { b.addCall(id, "echo", 1) }, text: "1 calls have not ended; first: call 3.1 has not ended"},
		"the origin died":    {died: true, do: func(b *Book) { b.addCall(id, "echo", 1); ran(b) }},
		"died, ran twice":    {died: true, do: func(b *Book) { b.addCall(id, "echo", 1); ran(b); ran(b) }, text: "ran more often"},
		"ended twice":        {do: func(b *Book) { b.addCall(id, "echo", 1); ran(b); b.addEnd(id, 1, nil); b.addEnd(id, 1, nil) }, text: "1 calls ended twice"},
		"ran twice":          {do: func(b *Book) { b.addCall(id, "echo", 1); ran(b); ran(b); b.addEnd(id, 2, nil) }, text: "1 calls ran more often"},
		"ran twice, may":     {do: func(b *Book) { b.addCall(id, "echo", 9); ran(b); ran(b); b.addEnd(id, 2, nil) }},
		"twice in one":       {do: func(b *Book) { b.addCall(id, "echo", 9); ran(b); ran(b); b.addEnd(id, 1, nil) }, text: "1 calls ran more often"},
		"never ran":          {do: func(b *Book) { b.addCall(id, "echo", 1); b.addEnd(id, 1, nil) }, text: "1 calls are said to have run"},
		"its handler failed": {do: func(b *Book) { b.addCall(id, "echo", 1); b.addRun(id); b.addEnd(id, 1, nil) }, text: "1 calls are said to have run"},
		"ran after all":      {do: func(b *Book) { b.addCall(id, "echo", 1); b.addRun(id); b.addEnd(id, 1, fails(na.NotRun)) }, text: "1 calls are said not to have run"},
		"did not run":        {do: func(b *Book) { b.addCall(id, "echo", 1); b.addEnd(id, 1, fails(na.Ran)) }, text: "1 calls are said to have run"},
		"refused":            {do: func(b *Book) { b.addCall(id, "echo", 1); b.addRefused(id); b.addEnd(id, 1, fails(na.NotRun)) }},
		"withdrawn": {do: func(b *Book) {
			b.addCall(id, "echo", 1)
			b.addWithdraw(id, hg.Withdrawn)
			b.addEnd(id, 1, fails(na.NotRun))
		}},
		"withdrawn, and ran": {do: func(b *Book) {
			b.addCall(id, "echo", 1)
			b.addRun(id)
			b.addWithdraw(id, hg.Withdrawn)
			b.addEnd(id, 1, fails(na.MaybeRan))
		}, text: "1 calls were withdrawn, and ran"},
		"canceled":          {do: func(b *Book) { b.addCall(id, "echo", 1); b.addTakenEnd(id, 1, na.ErrCanceled) }},
		"canceled by none":  {do: func(b *Book) { b.addCall(id, "echo", 1); b.addEnd(id, 1, na.ErrCanceled) }, text: "call 3.1 was canceled, and nobody canceled it"},
		"too late":          {do: func(b *Book) { b.addCall(id, "echo", 1); ran(b); b.addWithdraw(id, hg.TooLate); b.addEnd(id, 1, nil) }},
		"nobody's":          {do: func(b *Book) { b.addRun(id) }, text: "1 calls ran that nobody made"},
		"right":             {do: func(b *Book) { b.addCall(id, "echo", 1); ran(b); b.addEnd(id, 1, nil) }},
		"may have run":      {do: func(b *Book) { b.addCall(id, "echo", 1); ran(b); b.addEnd(id, 1, fails(na.MaybeRan)) }},
		"may not have":      {do: func(b *Book) { b.addCall(id, "echo", 1); b.addEnd(id, 1, fails(na.MaybeRan)) }},
		"one-way got lost":  {do: func(b *Book) { b.addCall(id, "note", oneWay); b.addEnd(id, 1, nil) }},
		"one-way ran twice": {do: func(b *Book) { b.addCall(id, "note", oneWay); ran(b); ran(b); b.addEnd(id, 1, nil) }, text: "ran more often"},
		"seen":              {do: func(b *Book) { b.addWrong("a\nb") }, text: "1 times somebody saw something wrong; first: a b"},
	} {
		t.Run(name, func(t *testing.T) {
			var book bytes.Buffer
			c.do(NewBook(&book))
			a := NewAudit()
			require.NoError(t, a.Read(&book))
			a.Close(func(origin uint64) bool { return c.died && origin == 3 })
			if c.text == "" {
				require.NoError(t, a.Err())
				return
			}
			require.ErrorContains(t, a.Err(), c.text)
		})
	}
	for _, bad := range []string{"what 0.1", "run x", "run", "end 0.1 ok"} {
		require.Error(t, NewAudit().Read(bytes.NewBufferString(bad+"\n")), bad)
	}
}
