package na

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A brokenPlugin gives the class whatever a test sets.
type brokenPlugin struct {
	fakePlugin
	open func(n *carrier.Network) *carrier.Network // returned by Open in place of n

}

func (p *brokenPlugin) Open(class carrier.Class, listen string) (*carrier.Network, error) {
	n, err := p.fakePlugin.Open(class, listen)
	if err != nil {
		return nil, err
	}
	return p.open(n), nil
}

// A brokenCompanion is a second transport that breaks the contract.
type brokenCompanion struct{ fakePlugin }

func (*brokenCompanion) Scheme() string { return "beside" }
func (*brokenCompanion) OpenBeside(carrier.Class, bool) (*carrier.Network, error) {
	return nil, nil
}

// TestPluginReturnsNil checks that a plugin that returns nil where the contract requires a value
// is named in the error, and nothing panics.
func TestPluginReturnsNil(t *testing.T) {
	t.Parallel()
	for want, open := range map[string]func(n *carrier.Network) *carrier.Network{
		"Open returned neither a Network nor an error": func(*carrier.Network) *carrier.Network { return nil },
		"Network.Names is nil":                         func(n *carrier.Network) *carrier.Network { n.Names = nil; return n },
		"Network.NewCarrier is nil":                    func(n *carrier.Network) *carrier.Network { n.NewCarrier = nil; return n },
	} {
		_, err := Open("fake://here", Config{Plugins: []Plugin{&brokenPlugin{open: open}}})
		require.ErrorContains(t, err, "plugin fake://: "+want)
		require.ErrorIs(t, err, ErrInvalid)
	}
	closed := 0
	_, err := Open("fake://here", Config{Plugins: []Plugin{&brokenPlugin{open: func(n *carrier.Network) *carrier.Network {
		return &carrier.Network{Close: func() error { closed++; return nil }}
	}}}})
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, 1, closed, "what it holds is given back")

	_, err = Open("fake://here,beside://", Config{Plugins: []Plugin{&fakePlugin{}, &brokenCompanion{}}})
	require.ErrorContains(t, err, "plugin beside://: OpenBeside returned neither a Network nor an error")

	cls, err := Open("fake://here", Config{Plugins: []Plugin{&brokenPlugin{open: func(n *carrier.Network) *carrier.Network {
		n.NewCarrier = func(carrier.Core) (carrier.Carrier, error) { return nil, nil }
		return n
	}}}})
	require.NoError(t, err)
	_, err = cls.NewContext()
	require.ErrorContains(t, err, "plugin fake://: NewCarrier returned neither a Carrier nor an error")
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, cls.Close())
	require.True(t, cls.Closed())
}

// TestResolveReturnsNothing checks that a lookup whose plugin finds no name and no error fails.
func TestResolveReturnsNothing(t *testing.T) {
	t.Parallel()
	p := &brokenPlugin{}
	p.open = func(n *carrier.Network) *carrier.Network { n.Names = emptyNames{}; return n }
	cls, err := Open("fake://here", Config{Plugins: []Plugin{p}})
	require.NoError(t, err)
	c, err := cls.NewContext()
	require.NoError(t, err)
	var got Result
	require.NoError(t, c.Lookup(c.NewOp(func(_ *Op, r Result) { got = r }), "fake://there"))
	require.Equal(t, 1, c.Trigger(0))
	require.ErrorContains(t, got.Err, "plugin fake://: Resolve returned neither a name nor an error")
	require.NoError(t, cls.Close())
	require.True(t, cls.Closed())
}

type emptyNames struct{}

func (emptyNames) Check(string) error { return nil }
func (emptyNames) Resolve(_ string, done func(string, error)) func() {
	done("", nil)
	return nil
}

// TestFailWithoutError checks that a carrier that ends a session without an error is named, and the
// context continues.
func TestFailWithoutError(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(l *session){
		"Fail":     func(l *session) { l.Fail(nil) },
		"Silent":   func(l *session) { l.Silent(nil) },
		"LaneDown": func(l *session) { l.LaneUp(); l.LaneDown(nil) },
	} {
		s := newScript(t, Config{})
		l := s.connect(8)
		lost := s.expect(1, make([]byte, 8))
		s.e.Lock()
		fail(l)
		s.e.UnlockInput()
		s.trigger()
		require.ErrorIs(t, lost.Err, ErrPeerLost, name)
		require.ErrorContains(t, lost.Err, "plugin script://", name)
		require.NoError(t, s.nctx.brokenBy(), name)

		refused := s.send("to nobody")
		require.Len(t, s.dialed, 2, name)
		s.e.Lock()
		s.dialed[1].Fail(nil)
		s.e.UnlockInput()
		s.trigger()
		require.ErrorIs(t, refused.Err, ErrUnreachable, name)
		require.ErrorContains(t, refused.Err, "without an error", name)
	}
}
