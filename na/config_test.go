package na

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigBadFields(t *testing.T) {
	bad := Config{
		Contexts: 257, Eager: 255, Envelopes: -1, Budget: -2, SendQueue: -3, PeerTimeout: time.Millisecond, ConnectTimeout: -4,
	}
	bad.Plugins = []Plugin{&fakePlugin{}}
	_, err := Open("fake://x", bad)
	require.ErrorIs(t, err, ErrInvalid)
	for _, part := range []string{
		"Contexts is 257", "Eager is 255", "Envelopes is -1", "Budget is -2", "SendQueue is -3", "PeerTimeout is 1ms",
		"ConnectTimeout is -4ns",
	} {
		require.ErrorContains(t, err, part, "all bad fields at once")
	}
	var joined interface{ Unwrap() []error }
	require.True(t, errors.As(err, &joined))
	require.Len(t, joined.Unwrap(), 7)

	for name, c := range map[string]Config{
		"Plugins is two plugins of scheme fake": {Plugins: []Plugin{&fakePlugin{}, &fakePlugin{}}},
		"Plugins is nil at index 0":             {Plugins: []Plugin{nil}},

		"Contexts":    {Contexts: -1},
		"Eager":       {Eager: 48<<10 + 1},
		"Envelopes":   {Envelopes: 4097},
		"PeerTimeout": {PeerTimeout: 500*time.Millisecond - 1},
	} {
		err := c.validate()
		require.ErrorIs(t, err, ErrInvalid)
		require.Equal(t, 1, strings.Count(err.Error(), "want"), "only %s is bad: %v", name, err)
		require.ErrorContains(t, err, name)
	}
	for _, c := range []Config{
		{},
		{Contexts: 256, Eager: 256, Envelopes: 4096, Budget: 1, SendQueue: 1, PeerTimeout: 500 * time.Millisecond, ConnectTimeout: 1},
		{Contexts: 1, Eager: 48 << 10, Envelopes: 1},
	} {
		require.NoError(t, c.validate(), "%+v", c)
	}
}

func TestConfigDefaults(t *testing.T) {
	require.Equal(t, Config{
		Contexts: 16, Eager: 4096, Envelopes: 32, Budget: 64 << 20, SendQueue: 8192, PeerTimeout: 5 * time.Second,
		ConnectTimeout: 5 * time.Second, Spin: 50 * time.Microsecond, Probe: 200 * time.Millisecond,
		Linger: 2 * time.Second, CertificateGrace: time.Minute,
	}, Config{}.withDefaults())
	given := Config{
		Contexts: 1, Eager: 300, Envelopes: 2, Budget: 3, SendQueue: 4, PeerTimeout: time.Hour, ConnectTimeout: time.Minute, Spin: -1,
		Probe: 7, Linger: 8, CertificateGrace: 9,
	}
	require.Equal(t, given, given.withDefaults())
	require.Equal(t, time.Hour, Config{PeerTimeout: time.Hour}.withDefaults().ConnectTimeout)
}

func TestOpenErrors(t *testing.T) {
	p := &fakePlugin{}
	with := Config{Plugins: []Plugin{p}}
	_, err := Open("here", with)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "missing scheme")
	_, err = Open("nosuch://here", with)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, `unknown transport "nosuch": have fake, tcp`)
	err = unknownScheme("nosuch", nil) // the examples have linked one in
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "no plugin registered")
	p.openErr = WithText(ErrAddrInUse, "taken")
	_, err = Open("fake://here", with)
	require.ErrorIs(t, err, ErrAddrInUse)
	require.ErrorContains(t, err, "open fake://here: taken")
}

// TestConfigName checks that a name that a HELLO cannot carry is refused.
func TestConfigName(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 65), "a\nb", "root (10.0.0.1:1"} {
		_, err := Open("fake://", Config{Name: name, Plugins: []Plugin{&fakePlugin{}}})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "Name is")
	}
	cls, err := Open("fake://", Config{Name: "order service", Plugins: []Plugin{&fakePlugin{}}})
	require.NoError(t, err)
	require.NoError(t, cls.Close())
}
