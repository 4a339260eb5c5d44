package yokan_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// openDouble opens the database of a double.
func openDouble[H requestHead](t testing.TB, cfg yokan.Config) (*double, *yokan.Database) {
	d, addr := serveDouble[H](t)
	db, err := yokan.Open(testContext(t), openNode(t), addr, 42, cfg)
	require.NoError(t, err)
	return d, db
}

// TestOpen checks that a provider that does not exist, is of another type, or sends invalid
// answers, is refused by Open.
func TestOpen(t *testing.T) {
	d, addr := serveDouble[head010](t)
	n := openNode(t)
	open := func(provider uint16, cfg yokan.Config) error {
		_, err := yokan.Open(testContext(t), n, addr, provider, cfg)
		return err
	}
	require.NoError(t, open(42, yokan.Config{}))
	named, err := yokan.Open(testContext(t), n, strings.Replace(addr, "127.0.0.1", "localhost", 1), 42, yokan.Config{})
	require.NoError(t, err)
	require.Equal(t, addr, named.Addr())
	require.ErrorIs(t, open(42, yokan.Config{MaxBytes: -1}), yokan.ErrInvalidArgs)
	require.ErrorIs(t, open(43, yokan.Config{}), mercury.ErrNoMethod)

	other := openNode(t)
	_, err = other.Provide(1, "warabi")
	require.NoError(t, err)
	other.Handle(mercury.MargoID("__identity__", 2), func(r *mercury.Request) { _ = r.Respond(make([]byte, 12)) }) // NULL
	_, err = other.Provide(3, "yokan")
	require.NoError(t, err)
	for provider, want := range map[uint16]string{1: `got "warabi"`, 2: `got ""`} {
		_, err = yokan.Open(testContext(t), n, other.Addr(), provider, yokan.Config{})
		require.ErrorIs(t, err, yokan.ErrInvalidProvider)
		require.ErrorContains(t, err, want)
	}
	_, err = yokan.Open(testContext(t), n, other.Addr(), 3, yokan.Config{})
	require.ErrorIs(t, err, mercury.ErrNoMethod, "it has the name, and no RPC")
	_, err = yokan.Open(testContext(t), n, "nowhere", 42, yokan.Config{})
	require.ErrorIs(t, err, mercury.ErrInvalid)

	for flags, want := range map[int]error{0: yokan.ErrAnswer, 3: yokan.ErrAnswer} {
		d.forgeWith(func(_ string, r *reply) { r.flags = make([]byte, flags) })
		require.ErrorIs(t, open(42, yokan.Config{}), want)
	}
	d.forgeWith(func(_ string, r *reply) { *r = reply{ret: int32(yokan.ErrInvalidDatabase)} })
	require.ErrorIs(t, open(42, yokan.Config{}), yokan.ErrInvalidDatabase)
}

// TestDeadline checks that a service from release 0.10 gets the time left until the context's
// deadline, in milliseconds, and 0 without one. An older one gets no deadline, and both get the
// modes that they support.
func TestDeadline(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{})
	require.NoError(t, db.With(yokan.Append|yokan.Direct).Put(context.Background(), []byte("k"), nil))
	require.Equal(t, head010{Mode: int32(yokan.Append)}, d.lastHead())
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	require.NoError(t, db.With(yokan.Bulk).Put(ctx, []byte("k"), nil))
	last := d.lastHead().(head010)
	require.Zero(t, last.Mode)
	require.InDelta(t, 3.6e6, last.Timeout, 60e3)

	_, err := db.With(yokan.Consume|yokan.Inclusive).ListKeys(context.Background(), nil, nil, 3)
	require.NoError(t, err)
	require.Equal(t, head010{Mode: int32(yokan.Inclusive)}, d.lastHead(), "a list is requested again if it does not fit")

	old, db := openDouble[head009](t, yokan.Config{})
	require.NoError(t, db.With(yokan.Append).Put(ctx, []byte("k"), nil))
	require.Equal(t, head009{int32(yokan.Append)}, old.lastHead())
}

// TestCanceled checks that an operation whose context ends returns at once, with the service still
// running, and its buffers are the caller's again.
func TestCanceled(t *testing.T) {
	d, db := openDouble[head010](t, yokan.Config{})
	require.NoError(t, db.Put(testContext(t), []byte("k"), []byte("value")))
	for _, mode := range []yokan.Mode{yokan.Direct, yokan.Bulk} {
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		d.forgeWith(func(string, *reply) {
			cancel()
			<-release
		})
		buf := make([]byte, 10)
		_, err := db.With(mode).GetPacked(ctx, [][]byte{[]byte("k")}, buf)
		require.ErrorIs(t, err, mercury.ErrCanceled)
		require.Equal(t, mercury.MaybeRan, fateOf(err))
		if mode == yokan.Bulk {
			d.t = discardT{} // its writes fail from here on
		}
		close(release)
		require.Equal(t, make([]byte, 10), buf)
	}
}

// fateOf returns that of an error of package yokan.
func fateOf(err error) mercury.Fate { return err.(*yokan.Error).Fate }

// discardT is a test that ignores failures.
type discardT struct{}

func (discardT) Errorf(string, ...any) {}

func TestErrorText(t *testing.T) {
	_, db := openDouble[head010](t, yokan.Config{})
	_, err := db.Get(testContext(t), []byte("k"))
	require.EqualError(t, err, fmt.Sprintf("yokan: get at %s, provider 42: key not found (YOKAN_ERR_KEY_NOT_FOUND)", db.Addr()))
	for code, want := range map[yokan.Code]string{
		-5: "unknown code -5", 0: "unknown code 0", 36: "unknown code 36", yokan.ErrOther: "other error (YOKAN_ERR_OTHER)", yokan.ErrMode: "YOKAN_ERR_MODE",
	} {
		require.ErrorContains(t, code, want)
	}
}
