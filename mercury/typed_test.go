package mercury_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

type sumIn struct{ A, B int32 }

var sum = mercury.Define[sumIn, int64]("sum")

type doubleIn struct {
	Mem  mercury.Bulk
	Name string
}

var double_ = mercury.DefineMargo[doubleIn, string]("double").At(3)

// TestTypedNoFunction checks that a method without a function is reported at once, and not by a
// panic when it is called.
func TestTypedNoFunction(t *testing.T) {
	n := open(t, mercury.Config{})
	require.Panics(t, func() { sum.Handle(n, nil) })
	p, err := n.Provide(3, "double")
	require.NoError(t, err)
	require.Panics(t, func() { double_.HandleAt(p, nil) })
	double_.HandleAt(p, func(context.Context, doubleIn) (string, error) { return "", nil })
}

// TestTyped checks typed methods, plain and of Margo, with memory in the input; each error reaches
// the origin with its code.
func TestTyped(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	sum.Handle(target, func(_ context.Context, in sumIn) (int64, error) {
		if in.A == 0 {
			return 0, mercury.ErrPermission
		}
		return int64(in.A) + int64(in.B), nil
	})
	double_.Handle(target, func(ctx context.Context, in doubleIn) (string, error) {
		if in.Mem.IsNull() {
			return "", mercury.ErrPermission
		}
		m := mercury.RequestOf(ctx).Remote(in.Mem)
		buf := make([]byte, m.Len())
		if _, err := m.Get(ctx, buf, 0); err != nil {
			return "", err
		}
		for i := range buf {
			buf[i] *= 2
		}
		_, err := m.Put(ctx, buf, 0)
		return "hello, " + in.Name, err
	})
	out, err := sum.Call(testContext(t), origin, target.Addr(), sumIn{40, 2})
	require.NoError(t, err)
	require.EqualValues(t, 42, out)
	require.EqualValues(t, mercury.ID("sum"), sum.ID())

	mem := []byte{1, 2, 3}
	region, err := origin.Lend(mem, mercury.Read|mercury.Write)
	require.NoError(t, err)
	text, err := double_.Call(testContext(t), origin, target.Addr(), doubleIn{region.Bulk(), "Ada"})
	require.NoError(t, err)
	require.Equal(t, "hello, Ada", text)
	require.Equal(t, []byte{2, 4, 6}, mem)

	_, err = sum.Call(testContext(t), origin, target.Addr(), sumIn{})
	require.ErrorIs(t, err, mercury.ErrRemote)
	require.Equal(t, mercury.ErrPermission, mercury.CodeOf(err))
	_, err = double_.Call(testContext(t), origin, target.Addr(), doubleIn{})
	require.ErrorIs(t, err, mercury.ErrRemote)
	require.Equal(t, mercury.ErrPermission, mercury.CodeOf(err))
	require.Equal(t, mercury.Ran, mercury.FateOf(err))
	_, err = origin.Call(testContext(t), target.Addr(), sum.ID(), []byte("xyz"))
	require.Equal(t, mercury.ErrProtocol, mercury.CodeOf(err))
	wrong := mercury.DefineID[sumIn, string]("sum", sum.ID())
	_, err = wrong.Call(testContext(t), origin, target.Addr(), sumIn{40, 2})
	require.ErrorIs(t, err, mercury.ErrProtocol)
	require.PanicsWithValue(t, "mercury: method m: proc: int has no fixed width, want int32 or int64",
		func() { mercury.Define[int, int32]("m") })
}

// TestTypedNotify checks a typed method that gives no response.
func TestTypedNotify(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	note := mercury.Define[string, struct{}]("note")
	reported := make(chan string, 1)
	note.Handle(target, func(_ context.Context, text string) (out struct{}, err error) {
		reported <- text
		return
	})
	require.NoError(t, note.Notify(testContext(t), origin, target.Addr(), "Ada"))
	require.Equal(t, "Ada", <-reported)
	err := note.Notify(testContext(t), origin, target.Addr(), "a\x00b")
	require.ErrorIs(t, err, mercury.ErrInvalid)
	require.Equal(t, mercury.NotRun, mercury.FateOf(err))
}

// TestMargoBytes checks that Margo's header is in front of input and output, and its own failure
// replaces the output.
func TestMargoBytes(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	target.Handle(mercury.MargoID("__identity__", 7), func(r *mercury.Request) {
		if len(r.Input()) != 8 {
			_ = r.Respond(nil)
			return
		}
		_ = r.Respond([]byte("\x00\x00\x00\x00" + "\x06\x00\x00\x00\x00\x00\x00\x00" + "yokan\x00" + "\x00\x01"))
	})
	who, err := mercury.Identity(testContext(t), origin, target.Addr(), 7)
	require.NoError(t, err)
	require.Equal(t, "yokan", who)
	target.Handle(mercury.MargoID("__identity__", 8), func(r *mercury.Request) { _ = r.Respond(binary.LittleEndian.AppendUint32(nil, 9)) })
	_, err = mercury.Identity(testContext(t), origin, target.Addr(), 8)
	require.ErrorIs(t, err, mercury.ErrRemote)
	require.EqualValues(t, 9, mercury.CodeOf(err))
	target.Handle(mercury.MargoID("__identity__", 9), func(r *mercury.Request) { _ = r.Respond([]byte{0}) })
	_, err = mercury.Identity(testContext(t), origin, target.Addr(), 9)
	require.ErrorContains(t, err, "not a Margo target")
}
