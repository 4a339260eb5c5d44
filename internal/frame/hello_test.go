package frame_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// labelValue is one value of a HELLO.
type labelValue struct {
	label uint16
	value []byte
}

func hello(vs ...labelValue) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint16(b, v.label)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(v.value)))
		b = append(b, v.value...)
	}
	return b
}

// minimalHello is a HELLO with what must be there.
func minimalHello() []labelValue {
	return []labelValue{
		{0x0100, []byte{1, 0, 1, 0}}, {0x0200, make([]byte, 16)}, {0x0500, []byte{2, 0}}, {0x0600, []byte{3, 0}},
		{0x0700, []byte{32, 0, 0, 0}}, {0x0800, []byte{0, 16, 0, 0}},
	}
}

func TestGreeting(t *testing.T) {
	want := greeting()
	got, err := frame.ParseGreeting(want.Append(nil))
	require.NoError(t, err)
	require.Equal(t, want, got)
	empty := frame.Greeting{Versions: frame.Range{Oldest: 7, Newest: 9}, Messages: frame.Range{Oldest: 1, Newest: 2}}
	got, err = frame.ParseGreeting(empty.Append(nil))
	require.NoError(t, err)
	require.Empty(t, got.Label)
	got.Label = nil
	require.Equal(t, empty, got)
	got, err = frame.ParseGreeting(hello(minimalHello()...))
	require.NoError(t, err)
	require.Equal(t, frame.Greeting{Versions: frame.Range{Oldest: 1, Newest: 1}, Context: 2, Target: 3, Envelopes: 32, Eager: 4096}, got)
}

// TestGreetingProcess checks that an invalid process name is read as empty, and nothing else is
// lost.
func TestGreetingProcess(t *testing.T) {
	for value, want := range map[string]string{
		"worker": "worker", "": "", "a\x1b[31mb": "", "a\nb": "", "\xff": "", "root (10.0.0.1:1)": "",
		strings.Repeat("x", 64): strings.Repeat("x", 64), strings.Repeat("x", 65): "",
	} {
		got, err := frame.ParseGreeting(hello(append(minimalHello(), labelValue{0x1200, []byte(value)})...))
		require.NoError(t, err)
		require.Equal(t, frame.Greeting{Versions: frame.Range{Oldest: 1, Newest: 1}, Context: 2, Target: 3, Envelopes: 32, Eager: 4096, Process: want}, got)
	}
}

// TestGreetingHost checks that a host that cannot be printed is read as empty.
func TestGreetingHost(t *testing.T) {
	for value, want := range map[string]string{"node 7": "node 7", "": "", "a\x1b[31mb": "", "a\nb": "", "\xff": ""} {
		vs := minimalHello()
		at := slices.IndexFunc(vs, func(v labelValue) bool { return v.label > 0x0400 })
		got, err := frame.ParseGreeting(hello(slices.Insert(vs, at, labelValue{0x0400, []byte(value)})...))
		require.NoError(t, err)
		require.Equal(t, want, got.Host)
	}
}

// TestGreetingUnknownLabels checks that unknown labels are skipped, at any place.
func TestGreetingUnknownLabels(t *testing.T) {
	want, err := frame.ParseGreeting(hello(minimalHello()...))
	require.NoError(t, err)
	for i := range len(minimalHello()) + 1 {
		vs := minimalHello()
		label := uint16(1)
		if i > 0 {
			label = vs[i-1].label + 1
		}
		for _, n := range []int{0, 1, 1000} {
			with := append(append(append([]labelValue{}, vs[:i]...), labelValue{label, make([]byte, n)}), vs[i:]...)
			got, err := frame.ParseGreeting(hello(with...))
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	_, err = frame.ParseGreeting(hello(append(minimalHello(), labelValue{0x7fff, nil})...))
	require.NoError(t, err, "the highest label")
}

// TestGreetingLongerValues checks that trailing bytes of a value behind the known ones are skipped.
func TestGreetingLongerValues(t *testing.T) {
	want, err := frame.ParseGreeting(hello(minimalHello()...))
	require.NoError(t, err)
	for i := range minimalHello() {
		vs := minimalHello()
		vs[i].value = append(vs[i].value, "later"...)
		got, err := frame.ParseGreeting(hello(vs...))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestGreetingMustUnderstand checks that an unknown label that must be understood refuses the
// HELLO.
func TestGreetingMustUnderstand(t *testing.T) {
	_, err := frame.ParseGreeting(hello(append(minimalHello(), labelValue{0x9234, []byte("later")})...))
	require.ErrorIs(t, err, codes.ErrVersion)
	require.ErrorContains(t, err, "unknown critical label 0x9234")
}

func TestGreetingRefuses(t *testing.T) {
	full := hello(minimalHello()...)
	for _, versions := range [][]byte{{0, 0, 0, 0}, {0, 0, 1, 0}, {2, 0, 1, 0}, {1, 0, 0, 0}} {
		vs := minimalHello()
		vs[0].value = versions
		_, err := frame.ParseGreeting(hello(vs...))
		require.ErrorContains(t, err, "of frames", "versions % x", versions)
		_, err = frame.ParseGreeting(hello(append(minimalHello(), labelValue{0x1300, versions})...))
		require.Equal(t, bytes.Equal(versions, make([]byte, 4)), err == nil, "versions % x of messages", versions)
	}
	for i, v := range minimalHello() {
		without := append(append([]labelValue{}, minimalHello()[:i]...), minimalHello()[i+1:]...)
		_, err := frame.ParseGreeting(hello(without...))
		require.ErrorIs(t, err, codes.ErrProtocol, "without label %#x", v.label)
		require.ErrorContains(t, err, "missing required label")

		twice := append(append(append([]labelValue{}, minimalHello()[:i]...), v), minimalHello()[i:]...)
		_, err = frame.ParseGreeting(hello(twice...))
		require.ErrorContains(t, err, "ascending order", "label %#x twice", v.label)

		for _, n := range []int{0, len(v.value) - 1} {
			other := minimalHello()
			other[i].value = make([]byte, n)
			_, err = frame.ParseGreeting(hello(other...))
			require.ErrorIs(t, err, codes.ErrProtocol, "label %#x of %d bytes", v.label, n)
		}
		if i > 0 {
			swapped := minimalHello()
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			_, err = frame.ParseGreeting(hello(swapped...))
			require.ErrorContains(t, err, "ascending order")
		}
	}
	for n := range full { // cut anywhere
		_, err := frame.ParseGreeting(full[:n])
		require.ErrorIs(t, err, codes.ErrProtocol, "%d of %d bytes", n, len(full))
	}
	long := append(minimalHello(), labelValue{0x2000, []byte(strings.Repeat("x", frame.MaxHello))})
	_, err := frame.ParseGreeting(hello(long...))
	require.ErrorContains(t, err, "the limit is 4096")
	most := append(minimalHello(), labelValue{0x2000, nil})
	most[len(most)-1].value = make([]byte, frame.MaxHello-len(hello(most...)))
	require.Len(t, hello(most...), frame.MaxHello)
	_, err = frame.ParseGreeting(hello(most...))
	require.NoError(t, err, "the longest HELLO")
	_, err = frame.ParseGreeting(hello(append(minimalHello(), labelValue{0x0900, make([]byte, 7)})...))
	require.ErrorContains(t, err, "want 8")
}

// FuzzGreeting checks that an accepted HELLO means the same when it is encoded again: unknown
// labels are removed, nothing else.
func FuzzGreeting(f *testing.F) {
	g := greeting()
	beginnings.Seed(f, g.Append(nil))
	beginnings.Seed(f, hello(minimalHello()...))
	beginnings.Seed(f, hello(append(minimalHello(), labelValue{0x0a01, []byte("later")})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := frame.ParseGreeting(b)
		if err != nil {
			if codes.Of(err) != codes.ErrProtocol && codes.Of(err) != codes.ErrVersion {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := frame.ParseGreeting(g.Append(nil))
		if err != nil && len(g.Append(nil)) <= frame.MaxHello {
			t.Fatalf("%+v: %v", g, err)
		}
		if err == nil {
			if len(g.Label) == 0 {
				g.Label, again.Label = nil, nil
			}
			require.Equal(t, g, again)
		}
		last := -1
		for rest := b; len(rest) > 0; {
			label, n := int(binary.LittleEndian.Uint16(rest)), int(binary.LittleEndian.Uint16(rest[2:]))
			if label <= last {
				t.Fatalf("label %#x after %#x was accepted", label, last)
			}
			last, rest = label, rest[4+n:]
		}
	})
}

// TestSecretIsSecret checks that a secret is not in the printed greeting, and an empty secret
// matches nothing.
func TestSecretIsSecret(t *testing.T) {
	g := greeting()
	g.Proof = g.Secret
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for _, v := range []any{g, &g, g.Secret} {
			require.NotContains(t, fmt.Sprintf(verb, v), string(g.Secret[:]))
			require.NotContains(t, fmt.Sprintf(verb, v), fmt.Sprint([16]byte(g.Secret)))
		}
	}
	require.True(t, g.Secret.Matches(g.Proof))
	require.False(t, g.Secret.Matches(frame.Secret{}))
	require.False(t, frame.Secret{}.Matches(frame.Secret{}))
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"w", "order service", "größe-7.exe", strings.Repeat("x", 64)} {
		require.True(t, frame.ValidName(name), name)
	}
	for _, name := range []string{"", strings.Repeat("x", 65), "a\nb", "a\x1b[31m", "a\tb", "a\u202eb", "a\u00a0b", "\xff", "root (10.0.0.1:1", "x)"} {
		require.False(t, frame.ValidName(name), "%q", name)
	}
}
