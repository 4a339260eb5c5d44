package errtext_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
)

// TestSuffix checks every combination of fate and time.
func TestSuffix(t *testing.T) {
	t.Parallel()
	for want, facts := range map[string][]string{
		"":                                {},
		" (did not run)":                  {"did not run", ""},
		" (after 2.03s)":                  {"", errtext.After(2034 * time.Millisecond)},
		" (did not run, after 416µs)":     {"did not run", errtext.After(415600 * time.Nanosecond)},
		" (ran, after 1ns, moved 3 of 4)": {"ran", errtext.After(1), "moved 3 of 4"},
	} {
		require.Equal(t, want, errtext.Suffix(facts...))
	}
	require.Empty(t, errtext.Suffix("", errtext.After(0), errtext.After(-1)))
}

// TestRound checks that a duration keeps about three digits.
func TestRound(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		999:                      "999ns",
		61234567:                 "61.2ms",
		9996 * time.Microsecond:  "10ms",
		61234 * time.Millisecond: "1m1.2s",
	} {
		require.Equal(t, want, errtext.Round(d).String())
	}
}

// TestWrap checks that a text has the name of one package.
func TestWrap(t *testing.T) {
	t.Parallel()
	inner := errtext.Wrap("na: open", io.EOF)
	err := errtext.Wrap("qs: open", inner)
	require.EqualError(t, err, "qs: open: open: EOF")
	require.ErrorIs(t, err, io.EOF)
	require.EqualError(t, errtext.Wrap("qs: peer", errors.Join(inner, io.ErrClosedPipe)), "qs: peer: open: EOF; io: read/write on closed pipe")
	require.Equal(t, "target: na: open: EOF", errtext.Cause(errors.New("target: "+inner.Error())), "the text of a peer is as it was")
}
