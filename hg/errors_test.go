package hg_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestErrorTextOfEveryFact checks the text of an error for every combination of fate, time and attempt, and
// that an error in another one repeats neither the name of a package nor a fate.
func TestErrorTextOfEveryFact(t *testing.T) {
	t.Parallel()
	peer, err := na.ParseAddr("tcp://10.0.0.7:9000")
	require.NoError(t, err)
	const took = 415600 * time.Nanosecond
	inner := &hg.Error{Op: "forward", RPC: "math/sum", Peer: peer, Took: took, Fate: hg.NotRun, Err: hg.ErrUnreachable}
	other := &hg.Error{Op: "forward", RPC: "math/mean", Peer: peer, Took: took, Fate: hg.NotRun, Err: hg.ErrUnreachable}
	for _, c := range []struct {
		e    hg.Error
		want string
	}{
		{hg.Error{Op: "forward", RPC: "math/sum", Peer: peer, Took: took, Fate: hg.NotRun, Err: &hg.RemoteError{Text: "no such job"}},
			"hg: forward math/sum to tcp://10.0.0.7:9000: target: no such job (did not run, after 416µs)"},
		{hg.Error{Op: "forward", Fate: hg.Ran, Err: hg.ErrPeerLost}, "hg: forward: peer lost (ran)"},
		{hg.Error{Op: "forward", Attempt: 2, Err: hg.ErrPeerLost}, "hg: forward: peer lost (may have run in attempt 2)"},
		{hg.Error{Op: "forward", Took: took, Attempt: 2, Err: hg.ErrPeerLost},
			"hg: forward: peer lost (may have run in attempt 2, this one ended after 416µs)"},
		{hg.Error{Op: "lookup", RPC: "tcp://one:1", Took: took, Fate: hg.NotRun, Err: hg.ErrNoEntry},
			"hg: lookup tcp://one:1: no such entry (after 416µs)"},
		{hg.Error{Op: "probe", Peer: peer, Took: took, Fate: hg.NotRun, Err: hg.ErrTimeout},
			"hg: probe tcp://10.0.0.7:9000: deadline exceeded (after 416µs)"},
		{hg.Error{Op: "respond", RPC: "x", Peer: peer, Fate: hg.Ran, Err: hg.ErrClosed}, "hg: respond x to tcp://10.0.0.7:9000: closed"},
		{hg.Error{Op: "output of", RPC: "x", Peer: peer, Fate: hg.Ran, Err: hg.ErrOverflow},
			"hg: output of x from tcp://10.0.0.7:9000: larger than the receiver's limit"},
		{hg.Error{Op: "create", RPC: "0x1", Peer: peer, Err: hg.ErrNoEntry}, "hg: create 0x1 for tcp://10.0.0.7:9000: no such entry"},

		{hg.Error{Op: "forward", Fate: hg.NotRun, Err: &na.OpError{Op: "get", Addr: peer, Err: hg.ErrPeerLost}}, "hg: forward: peer lost (did not run)"},
		{hg.Error{Op: "forward", Fate: hg.NotRun, Err: errors.New("qs: node closed")}, "hg: forward: node closed (did not run)"},
		{hg.Error{Op: "forward", RPC: "math/sum", Fate: hg.NotRun, Err: fmt.Errorf("mine: %w", inner)},
			"mine: hg: forward math/sum to tcp://10.0.0.7:9000: peer unreachable (did not run, after 416µs)"},
		{hg.Error{Op: "forward", RPC: "math/sum", Fate: hg.MaybeRan, Attempt: 1, Err: fmt.Errorf("mine: %w", inner)},
			"mine: hg: forward math/sum to tcp://10.0.0.7:9000: peer unreachable (did not run, after 416µs) (may have run in attempt 1)"},
		{hg.Error{Op: "forward", RPC: "math/sum", Fate: hg.NotRun, Err: other},
			"hg: forward math/sum: forward math/mean to tcp://10.0.0.7:9000: peer unreachable (did not run, after 416µs) (did not run)"},
	} {
		require.EqualError(t, &c.e, c.want)
	}
}
