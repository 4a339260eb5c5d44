package qs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var errQuota = qs.DefineCode(213, "quota used up")

// TestDefineCode checks that a code of the program's own has a name, in its errors and in those
// that peers get; a second name, and those of the library, are refused.
func TestDefineCode(t *testing.T) {
	t.Parallel()
	ask := qs.Define[int, int]("codes/ask")
	c, to := pair(t, qs.Config{Inspect: true}, func(n *qs.Node) {
		ask.Handle(n, func(context.Context, int) (int, error) { return 0, errQuota })
	})
	_, err := ask.Call(testContext(t), to, 1)
	require.ErrorIs(t, err, errQuota)
	require.Equal(t, errQuota, qs.CodeOf(err))
	require.ErrorContains(t, err, "target: quota used up")
	require.Equal(t, "quota used up", qs.CodeOf(err).Error())

	_, err = c.HG().Class().Register(inspect.RPCsRPC, nil)
	if err != nil {
		require.ErrorIs(t, err, na.ErrExists)
	}
	h, err := c.HG().Create(to.Addr(), hg.HashName(inspect.RPCsRPC))
	require.NoError(t, err)
	defer h.Close()
	b, err := h.CallRaw(testContext(t), nil)
	require.NoError(t, err)
	named, err := inspect.DecodeCodes(b)
	require.NoError(t, err)
	require.Equal(t, "quota used up", named[213])
	rpcs, err := inspect.DecodeRPCs(b)
	require.NoError(t, err)
	require.NotEmpty(t, rpcs)

	require.Equal(t, errQuota, qs.DefineCode(213, "quota used up"), "the same again")
	require.PanicsWithValue(t, `hg: DefineCode: code 213 is already named "quota used up", not "no quota"`, func() { qs.DefineCode(213, "no quota") })
	for code, name := range map[qs.Code]string{127: "x", 214: "", 215: "a\nb", qs.ErrNotFound: "gone"} {
		require.Panics(t, func() { qs.DefineCode(code, name) }, "%d %q", code, name)
	}
	require.Equal(t, "application error code 214", qs.Code(214).Error())
}
