package na

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseAddr(t *testing.T) {
	for text, want := range map[string]Addr{
		"tcp://10.0.0.7:9000":     MakeAddr("tcp://10.0.0.7:9000", 0),
		"tcp://10.0.0.7:9000#0":   MakeAddr("tcp://10.0.0.7:9000", 0),
		"tcp://10.0.0.7:9000#2":   MakeAddr("tcp://10.0.0.7:9000", 2),
		"tcp://[::1]:9000#65535":  MakeAddr("tcp://[::1]:9000", 65535),
		"sm://some.host/../x":     MakeAddr("sm://some.host/../x", 0),
		"a+b-c.9://x":             MakeAddr("a+b-c.9://x", 0),
		"sim://nöde":              MakeAddr("sim://nöde", 0),
		"tcp://host?x=y&z=://abc": MakeAddr("tcp://host?x=y&z=://abc", 0),
	} {
		got, err := ParseAddr(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.True(t, want == got, "addresses are compared with ==")
	}
	for text, why := range map[string]string{
		"":                                   "missing scheme",
		"host:9000":                          "missing scheme",
		"://host":                            "missing scheme",
		"tcp:/host":                          "missing scheme",
		"tcp://":                             "missing host",
		"tcp://#1":                           "missing host",
		"tcp://h:1,sm://":                    "two transports, want one: tcp://h:1",
		"tcp://h:1,sm://#3":                  "two transports",
		"TCP://host":                         "invalid character",
		"1tcp://host":                        "invalid character",
		"t cp://host":                        "invalid character",
		"tcp://ho st":                        "space",
		"tcp://host\n":                       "space or control",
		"tcp://host\x7f":                     "control",
		"tcp://host#":                        "want 0 to 65535",
		"tcp://host#x":                       "want 0 to 65535",
		"tcp://host#-1":                      "want 0 to 65535",
		"tcp://host#+1":                      "want 0 to 65535",
		"tcp://host#65536":                   "want 0 to 65535",
		"tcp://host#1#2":                     "want 0 to 65535",
		"tcp://host#1 ":                      "want 0 to 65535",
		"tcp://" + strings.Repeat("x", 1019): "limit 1024",
	} {
		_, err := ParseAddr(text)
		require.ErrorIs(t, err, ErrInvalid, text)
		require.ErrorContains(t, err, why, text)
	}
	_, err := ParseAddr("tcp://" + strings.Repeat("x", 506))
	require.NoError(t, err)
}

func TestAddr(t *testing.T) {
	a := MakeAddr("tcp://10.0.0.7:9000", 2)
	require.Equal(t, "tcp://10.0.0.7:9000#2", a.String())
	require.Equal(t, "tcp://10.0.0.7:9000", a.Name())
	require.Equal(t, "tcp", a.Scheme())
	require.Equal(t, 2, a.Target())
	require.False(t, a.IsZero())

	bound := a.Bound(77)
	require.NotEqual(t, a, bound)
	require.EqualValues(t, 77, bound.Session())
	require.Equal(t, a, bound.Named())
	require.Equal(t, a.String(), bound.String(), "the text does not contain the session")
	require.Equal(t, MakeAddr("tcp://10.0.0.7:9000", 5), bound.WithTarget(5))

	var zero Addr
	require.True(t, zero.IsZero())
	require.Equal(t, "<no address>", zero.String())
	require.Empty(t, zero.Name())
	require.Empty(t, zero.Scheme())
	require.NotEqual(t, zero, MakeAddr("", 0))

	text, err := json.Marshal(map[string]Addr{"a": bound, "none": zero})
	require.NoError(t, err)
	require.JSONEq(t, `{"a":"tcp://10.0.0.7:9000#2","none":""}`, string(text))
	var back map[string]Addr
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, map[string]Addr{"a": a, "none": zero}, back)
	kept := a
	require.ErrorIs(t, kept.UnmarshalText([]byte("nonsense")), ErrInvalid)
	require.Equal(t, a, kept, "an address that could not be read changes nothing")
}

// FuzzParseAddr checks that an address that parses prints in a form that parses to the same
// address.
func FuzzParseAddr(f *testing.F) {
	for _, text := range []string{"tcp://10.0.0.7:9000#2", "sim://a", "tcp://#", "://", "a://b#65536", "tcp://host#00", "udp://[::1]:1#1#1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddr(text)
		if err != nil {
			if a != (Addr{}) || CodeOf(err) != ErrInvalid {
				t.Fatalf("%q: got %v and %v, want nothing and ErrInvalid", text, a, err)
			}
			return
		}
		again, err := ParseAddr(a.String())
		if err != nil || again != a {
			t.Fatalf("%q: printed as %q, which gives %v, %v", text, a, again, err)
		}
		if a.IsZero() || a.Session() != 0 || a.Scheme() == "" || a.Name() == "" {
			t.Fatalf("%q: got %+v", text, a)
		}
		var b Addr
		if m, err := a.MarshalText(); err != nil || b.UnmarshalText(m) != nil || b != a {
			t.Fatalf("%q: text form %q gives %v, %v", text, m, b, err)
		}
	})
}

func TestAddrLabel(t *testing.T) {
	a := MakeAddr("tcp://@2c666ea7472d4eef", 2)
	require.Equal(t, a.String(), a.Label())
	for label, of := range map[string]struct {
		a               Addr
		process, remote string
	}{
		"worker (10.0.0.3:41234#2)":        {a, "worker", "10.0.0.3:41234"},
		"10.0.0.3:41234":                   {a.WithTarget(0), "", "10.0.0.3:41234"},
		"worker (tcp://@2c666ea7472d4eef)": {a.WithTarget(0), "worker", ""},
		"kv (tcp://10.0.0.7:9000#1)":       {MakeAddr("tcp://10.0.0.7:9000", 1), "kv", ""},
	} {
		text := MakeLabel(of.a, of.process, of.remote)
		got := of.a.Bound(7).Labeled(&text)
		require.Equal(t, label, got.Label())
		require.Equal(t, of.a.String(), got.String(), "Lookup reads it")
		require.Equal(t, of.a, got.Named())
		require.Equal(t, of.a, got.WithTarget(of.a.Target()))
	}
}
