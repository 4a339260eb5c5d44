package hg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// TestCodesOfHandlers checks that a handler's code arrives, and that an error which the handler
// received is not taken for one of the origin.
func TestCodesOfHandlers(t *testing.T) {
	third := fmt.Errorf("asking another: %w", &hg.RemoteError{Code: hg.ErrNotFound, Text: "not there"})
	for _, c := range []struct {
		name    string
		err     error
		code    hg.Code
		fate    hg.Fate
		text    string
		matches []error
	}{
		{"Handler", hg.Errorf(hg.ErrNotFound, "no blob %q", "x"), hg.ErrNotFound, hg.Ran, `target: no blob "x"`, []error{hg.ErrNotFound}},
		{"Bare", hg.ErrDenied, hg.ErrDenied, hg.Ran, "target: denied", []error{hg.ErrDenied}},
		{"Program", hg.Code(200), 200, hg.Ran, "", []error{hg.Code(200)}},
		{"Outermost", hg.Errorf(hg.ErrInternal, "disk: %w", hg.ErrNotFound), hg.ErrInternal, hg.Ran, "target: disk: not found", []error{hg.ErrInternal}},
		{"None", errors.New("disk on fire"), hg.ErrHandler, hg.Ran, "target: disk on fire", []error{hg.ErrHandler}},
		{"Refused", hg.Refuse(hg.Errorf(hg.ErrExhausted, "quota")), hg.ErrExhausted, hg.NotRun, "target: quota", []error{hg.ErrExhausted, hg.ErrRefused}},
		{"LocalCode", &hg.Error{Op: "forward", Err: hg.ErrPeerLost}, hg.ErrPeerLost, hg.Ran, "", nil},
		{"ContextEnded", context.Canceled, hg.ErrHandler, hg.Ran, "", []error{hg.ErrHandler}},
		{"ThirdParty", third, hg.ErrHandler, hg.Ran, "target: asking another: target: not there", []error{hg.ErrHandler}},
		{"OriginsOnly", na.ErrAnswered, hg.ErrHandler, hg.Ran, "", []error{hg.ErrHandler}},
		{"OK", hg.Code(0), hg.ErrHandler, hg.Ran, "target: error of code 0: success", []error{hg.ErrHandler}},
		{"OKInText", hg.Errorf(0, "disk on fire"), hg.ErrHandler, hg.Ran, "target: error of code 0: disk on fire", []error{hg.ErrHandler}},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{})
				for name, handler := range map[string]hg.Handler{
					"returns":  func(hg.Request) error { return c.err },
					"responds": func(h hg.Request) error { return h.RespondError(c.err, nil) },
				} {
					h := p.handle(p.rpc(name, handler))
					err := p.call(h, nil)
					remote, ok := hg.RemoteOf(err)
					require.True(t, ok)
					require.Equal(t, c.code, remote.Code)
					require.Equal(t, c.fate, hg.FateOf(err))
					require.Equal(t, c.fate == hg.NotRun, remote.Refused)
					require.Contains(t, err.Error(), c.text)
					gave := c.code // the handler's code is kept; ErrPeerLost, for example, is of a peer of the target
					if gave < hg.ErrNotFound {
						gave = hg.ErrRemote
					}
					require.Equal(t, gave, hg.CodeOf(err))
					for code := range hg.Code(255) {
						want := code == hg.ErrRemote
						for _, match := range c.matches {
							want = want || match == code
						}
						require.Equal(t, want, errors.Is(err, code), "%v is code %d", err, code)
					}
					require.NotErrorIs(t, err, context.Canceled)
					h.Close()
				}
				p.requireClean(0)
			})
		})
	}
}

func TestFateOfSuccess(t *testing.T) {
	require.Equal(t, hg.Ran, hg.FateOf(nil))
	require.Equal(t, hg.MaybeRan, hg.FateOf(errors.New("who knows")))
	require.NoError(t, hg.Refuse(nil))
	require.NoError(t, hg.WithDetail(nil, "of nothing"))
	require.Equal(t, hg.ErrNotFound, hg.CodeOf(fmt.Errorf("wrapped: %w", hg.Errorf(hg.ErrNotFound, "x"))))
}

// TestFateOfSeveral checks that of several errors the worst fate counts, in any order; an error
// that has a fate overrides the errors that it wraps.
func TestFateOfSeveral(t *testing.T) {
	of := func(fate hg.Fate, err error) error { return &hg.Error{Op: "forward", Fate: fate, Err: err} }
	not, maybe, ran, plain := of(hg.NotRun, hg.ErrClosed), of(hg.MaybeRan, hg.ErrPeerLost), of(hg.Ran, hg.ErrRemote), errors.New("plain")
	for _, c := range []struct {
		want hg.Fate
		errs []error
	}{
		{hg.NotRun, []error{not, not}},
		{hg.NotRun, []error{not, plain}},
		{hg.MaybeRan, []error{not, maybe}},
		{hg.MaybeRan, []error{plain, plain}},
		{hg.Ran, []error{not, ran}},
		{hg.Ran, []error{maybe, ran}},
		{hg.NotRun, []error{of(hg.NotRun, maybe), plain}},
	} {
		for range 2 {
			a, b := c.errs[0], c.errs[1]
			require.Equal(t, c.want, hg.FateOf(errors.Join(a, b)), "%v, %v", a, b)
			require.Equal(t, c.want, hg.FateOf(fmt.Errorf("%w and %w", a, b)))
			require.Equal(t, c.want, hg.FateOf(fmt.Errorf("more: %w", errors.Join(nil, a, errors.Join(b)))))
			slices.Reverse(c.errs)
		}
	}
}

func TestRespondNilError(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("nil", func(h hg.Request) error {
			require.ErrorIs(t, h.RespondError(nil, nil), hg.ErrInvalid)
			return h.RespondRaw(nil, nil)
		}))
		require.NoError(t, p.call(h, nil))
		h.Close()
		p.requireClean(0)
	})
}

// TestPanicValueStaysAtTarget checks that a panic's value stays at the target; the error that travels names
// the line in its log.
func TestPanicValueStaysAtTarget(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("panics", func(hg.Request) error { panic("password=hunter2") }))
		first, second := p.call(h, nil), p.call(h, nil)
		requireCode(t, first, hg.ErrPanic)
		require.ErrorIs(t, first, hg.ErrPanic)
		require.NotContains(t, first.Error(), "hunter2")
		a, _ := hg.RemoteOf(first)
		b, _ := hg.RemoteOf(second)
		require.NotEqual(t, a.Text, b.Text, "each has an id of its own")
		h.Close()
		p.requireClean(0)
	})
}

// TestContextsEndCalls checks for each way to wait for a call that a passed deadline is no cancel,
// and a cancel no timeout.
func TestContextsEndCalls(t *testing.T) {
	var m silentTarget
	waits := map[string]func(ctx context.Context, p *pair, h *hg.Handle) error{
		"Call": func(ctx context.Context, _ *pair, h *hg.Handle) error { return h.Call(ctx, nil, nil) },
		"Request": func(ctx context.Context, p *pair, h *hg.Handle) error {
			r := request.NewClass(p.octx).Create(h.Cancel)
			require.NoError(p.t, h.Forward(nil, func(_ *hg.Handle, err error) { r.Complete(err) }))
			return r.WaitContext(ctx)
		},
		"RequestAll": func(ctx context.Context, p *pair, h *hg.Handle) error {
			r := request.NewClass(p.octx).Create(h.Cancel)
			require.NoError(p.t, h.Forward(nil, func(_ *hg.Handle, err error) { r.Complete(err) }))
			return request.WaitAllContext(ctx, r)
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				m.kept = nil
				p := newPair(t, n, hg.Config{})
				h := p.handle(p.rpc("mute", m.handler))
				ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
				err := wait(ctx, p, h)
				cancel()
				require.ErrorIs(t, err, hg.ErrTimeout)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, hg.ErrCanceled)
				require.NotErrorIs(t, err, context.Canceled)
				require.Equal(t, hg.ErrTimeout, hg.CodeOf(err))
				var e *hg.Error
				require.ErrorAs(t, err, &e)

				ctx, cancel = context.WithCancel(t.Context())
				cancel()
				err = wait(ctx, p, h)
				require.ErrorIs(t, err, hg.ErrCanceled)
				require.ErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, hg.ErrTimeout)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, hg.ErrCanceled, hg.CodeOf(err))

				mine := errors.New("mine")
				cause, stop := context.WithCancelCause(t.Context())
				stop(mine)
				err = wait(cause, p, h)
				require.ErrorIs(t, err, mine)
				require.ErrorIs(t, err, hg.ErrCanceled)
				h.Close()
				last := p.handle(p.rpc("last", echo)) // behind the canceled requests: when it is answered they have arrived
				require.NoError(t, p.call(last, "x"))
				last.Close()
				n.Until(func() bool { return p.tctx.Stats().Queued == 0 })
				for _, h := range m.kept {
					releaseUnanswered(h)
				}
				p.requireClean(0)
			})
		})
	}
}
