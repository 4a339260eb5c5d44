package hg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// pair is an origin and a target with the same RPCs.
type pair struct {
	*transports.Net
	t              *testing.T
	target, origin *hg.Class
	tctx, octx     *hg.Context
}

func newPair(t *testing.T, n *transports.Net, cfg hg.Config) *pair {
	p := &pair{Net: n, t: t}
	p.target, p.tctx = n.Target(cfg)
	p.origin, p.octx = n.Origin(cfg)
	return p
}

// rpc registers an RPC on both sides.
func (p *pair) rpc(name string, handler hg.Handler) hg.ID {
	p.t.Helper()
	_, err := p.target.Register(name, handler)
	require.NoError(p.t, err)
	id, err := p.origin.Register(name, nil)
	require.NoError(p.t, err)
	return id
}

func (p *pair) oneWay(name string, handler hg.Handler) hg.ID {
	p.t.Helper()
	_, err := p.target.RegisterRPC(hg.RPC{Name: name, OneWay: true, Handler: handler})
	require.NoError(p.t, err)
	id, err := p.origin.RegisterRPC(hg.RPC{Name: name, OneWay: true})
	require.NoError(p.t, err)
	return id
}

func (p *pair) handle(id hg.ID) *hg.Handle {
	p.t.Helper()
	h, err := p.octx.Create(p.target.Addr(), id)
	require.NoError(p.t, err)
	return h
}

// outcome counts the callbacks of one handle's calls.
type outcome struct {
	calls int
	err   error
}

func (o *outcome) cb(_ *hg.Handle, err error) { o.calls++; o.err = err }

// call forwards in and waits for the callback.
func (p *pair) call(h *hg.Handle, in any) error {
	p.t.Helper()
	var o outcome
	require.NoError(p.t, h.Forward(in, o.cb))
	p.Until(func() bool { return o.calls > 0 })
	require.Equal(p.t, 1, o.calls)
	return o.err
}

func echo(h hg.Request) error {
	in, err := h.InputRaw()
	if err != nil {
		return err
	}
	return h.RespondRaw(in, nil)
}

// requireClean requires that no call left anything behind on either side. Handles that the test holds are counted in held.
func (p *pair) requireClean(held int64) {
	p.t.Helper()
	for _, hctx := range []*hg.Context{p.octx, p.tctx} {
		p.Until(func() bool {
			s := hctx.Stats()
			return s.Lent == 0 && s.Pulled == 0 && s.NA.Leases == 0 && s.NA.Regions == 0 && s.NA.Envelopes == 0 &&
				s.NA.Outstanding == 0 && s.NA.Queued == 0
		})
	}
	require.Equal(p.t, held, p.octx.Stats().Handles, "handles at the origin")
	p.Until(func() bool { return p.tctx.Stats().Handles == 0 })
}

// codeOf returns the code of the error that ended a call, from either side.
func codeOf(err error) hg.Code {
	if remote, ok := hg.RemoteOf(err); ok {
		return remote.Code
	}
	return hg.CodeOf(err)
}

// requireCode requires that the target has answered with a code.
func requireCode(t *testing.T, err error, code hg.Code) {
	t.Helper()
	remote, ok := hg.RemoteOf(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, remote.Code)
	require.ErrorIs(t, err, hg.ErrRemote)
}

// detach is a request that is answered later.
func detach(h hg.Request) hg.Request {
	if err := h.Detach(); err != nil {
		panic(err)
	}
	return h
}

// releaseUnanswered lets a detached request go without output.
func releaseUnanswered(h hg.Request) { _ = h.RespondError(na.ErrNoResponse, nil) }
