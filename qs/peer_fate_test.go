package qs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// failingResolver is a Resolver whose Watch returns an error without a fate.
type failingResolver struct{ err error }

func (r *failingResolver) Watch(context.Context, string, func([]string, error)) error { return r.err }

// TestPeerFate checks that every error of Peer and PeerWith has the fate NotRun, and keeps its text,
// its code and its cause.
func TestPeerFate(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://", qs.Config{})
	boom := errors.New("boom")
	ended, stop := context.WithCancel(context.Background())
	stop()
	for name, c := range map[string]struct {
		ctx   context.Context
		opts  qs.PeerOptions
		addrs []string
		is    error
		want  string
	}{
		"unknown host":    {testContext(t), qs.PeerOptions{}, []string{"tcp://nothing.invalid:1"}, nil, "nothing.invalid"},
		"unknown scheme":  {testContext(t), qs.PeerOptions{}, []string{"http://127.0.0.1:1"}, nil, "http"},
		"no port":         {testContext(t), qs.PeerOptions{}, []string{"tcp://127.0.0.1"}, qs.ErrInvalid, "port"},
		"no address":      {testContext(t), qs.PeerOptions{}, nil, qs.ErrInvalid, "no address: "},
		"negative option": {testContext(t), qs.PeerOptions{HealthInterval: -1}, []string{"tcp://127.0.0.1:1"}, qs.ErrInvalid, "HealthInterval is -1ns"},
		"resolver":        {testContext(t), qs.PeerOptions{Resolver: &failingResolver{boom}}, []string{"kv"}, boom, "boom"},
		"resolver that answers nothing, and a canceled context": {ended, qs.PeerOptions{Resolver: &failingResolver{boom}}, []string{"other"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := n.PeerWith(c.ctx, c.opts, c.addrs...)
			require.Regexp(t, "^qs: peer: .*"+c.want, err)
			require.Equal(t, qs.NotRun, qs.FateOf(err))
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		})
	}
	require.Equal(t, qs.MaybeRan, qs.FateOf(boom), "an error that neither a call nor Peer returned")
}
