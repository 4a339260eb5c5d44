package carrier_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// countingPlugin counts the networks that it opens.
type countingPlugin struct {
	scheme string
	opened int
}

func (p *countingPlugin) Scheme() string { return p.scheme }

func (p *countingPlugin) Open(carrier.Class, string) (*carrier.Network, error) {
	p.opened++
	return &carrier.Network{Names: emptyNames{}, NewCarrier: func(carrier.Core) (carrier.Carrier, error) { return nil, codes.ErrUnsupported }}, nil
}

// emptyNames resolves no name.
type emptyNames struct{}

func (emptyNames) Check(string) error { return codes.ErrUnsupported }
func (emptyNames) Resolve(_ string, done func(name string, err error)) func() {
	done("", codes.ErrUnsupported)
	return nil
}

// register registers plugins until the test ends.
func register(t *testing.T, all ...carrier.Plugin) {
	for _, p := range all {
		carrier.Register(p)
		t.Cleanup(func() { carrier.Unregister(p) })
	}
}

func TestRegister(t *testing.T) {
	open := func(plugins ...na.Plugin) {
		cls, err := na.Open("one://here", na.Config{Plugins: plugins})
		require.NoError(t, err)
		require.NoError(t, cls.Close())
	}
	one, two, given := &countingPlugin{scheme: "one"}, &countingPlugin{scheme: "two"}, &countingPlugin{scheme: "one"}
	register(t, two, one)
	require.PanicsWithValue(t, "carrier: plugin one is registered twice", func() { carrier.Register(given) })
	require.PanicsWithValue(t, "carrier: Register of a nil plugin", func() { carrier.Register(nil) })
	open()
	require.Equal(t, 1, one.opened)
	open(given)
	require.Equal(t, 1, one.opened)
	require.Equal(t, 1, given.opened, "the given plugins have precedence")
	require.Zero(t, two.opened)
}

func TestFind(t *testing.T) {
	p, all := carrier.Find("one")
	require.Nil(t, p)
	require.Empty(t, all)
	one, two := &countingPlugin{scheme: "one"}, &countingPlugin{scheme: "two"}
	register(t, two, one)
	p, all = carrier.Find("one")
	require.Same(t, one, p)
	require.Equal(t, []string{"one", "two"}, all)
	_, err := na.Open("three://here", na.Config{Plugins: []na.Plugin{&countingPlugin{scheme: "four"}}})
	require.ErrorIs(t, err, na.ErrUnsupported)
	require.ErrorContains(t, err, `unknown transport "three": have four, one, two`)
}
