package na

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/stretchr/testify/require"
)

// pinned lists the codes, which cross the wire and are C Mercury's up to 24: a number here never
// changes.
var pinned = map[Code]uint8{
	OK: 0, ErrPermission: 1, ErrNoMethod: 2, ErrAgain: 4, ErrNoMemory: 5, ErrFault: 7, ErrBusy: 8, ErrExists: 9,
	ErrInvalid: 11, ErrProtocol: 12, ErrOverflow: 13, ErrMsgSize: 14, ErrVersion: 15, ErrUnsupported: 16,
	ErrAddrInUse: 17, ErrAddrInvalid: 18, ErrUnreachable: 19, ErrTimeout: 20, ErrCanceled: 21, ErrIO: 22, ErrChecksum: 24,
	ErrPeerLost: 32, ErrClosed: 33, ErrNoResponse: 34, ErrPanic: 35, ErrHandler: 36, ErrNoCredit: 37, ErrRevoked: 38,
	ErrDuplicate: 39, ErrTooLate: 40, ErrAnswered: 41, ErrRemote: 42, ErrRefused: 43, ErrNoEntry: 44,
	codes.ErrNotFound: 64, codes.ErrAlreadyExists: 65, codes.ErrBadInput: 66, codes.ErrDenied: 67, codes.ErrNotReady: 68, codes.ErrExhausted: 69, codes.ErrUnavailable: 70, codes.ErrAborted: 71, codes.ErrInternal: 72, codes.ErrDraining: 73,
}

func TestCodes(t *testing.T) {
	texts := map[string]Code{}
	for c, n := range pinned {
		require.Equal(t, n, uint8(c), "code %v", c)
		require.NotContains(t, texts, c.Error(), "two codes with one text")
		texts[c.Error()] = c
		require.NotContains(t, c.Error(), "unknown error code")
	}
	for n := range 256 {
		_, known := pinned[Code(n)]
		require.Equal(t, known, !strings.Contains(Code(n).Error(), " "+strconv.Itoa(n)), "code %d is pinned if it has a text", n)
	}
	require.Equal(t, "application error code 200", Code(200).Error())
	require.Equal(t, "unknown error code 99", Code(99).Error())
	for f, n := range map[Fate]uint8{MaybeRan: 0, NotRun: 1, Ran: 2} {
		require.Equal(t, n, uint8(f))
	}
	require.Equal(t, "may have run, did not run, ran", fmt.Sprintf("%v, %v, %v", MaybeRan, NotRun, Ran))
}

func TestCodesMatchTheStandardLibrary(t *testing.T) {
	targets := []error{context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, fs.ErrPermission, net.ErrClosed, fs.ErrClosed, errors.ErrUnsupported, io.EOF}
	want := map[Code][]error{
		ErrCanceled:    {context.Canceled},
		ErrTimeout:     {os.ErrDeadlineExceeded, context.DeadlineExceeded},
		ErrPermission:  {fs.ErrPermission},
		ErrClosed:      {net.ErrClosed, fs.ErrClosed},
		ErrUnsupported: {errors.ErrUnsupported},
	}
	for c := range pinned {
		for _, target := range targets {
			matches := false
			for _, w := range want[c] {
				matches = matches || w == target
			}
			for _, err := range []error{c, WithText(c, "in other words"), &OpError{Op: "get", Err: c}, fmt.Errorf("wrapped: %w", c)} {
				require.Equal(t, matches, errors.Is(err, target), "%v is %v", err, target)
				require.ErrorIs(t, err, c)
				require.Equal(t, c, CodeOf(err))
			}
		}
		require.Equal(t, c == ErrTimeout, c.Timeout())
	}
	var ne interface{ Timeout() bool }
	require.True(t, errors.As(error(&OpError{Op: "get", Err: WithText(ErrTimeout, "too slow")}), &ne))
	require.True(t, ne.Timeout())
	require.False(t, (&OpError{Err: ErrCanceled}).Timeout())
}

func TestCodeOf(t *testing.T) {
	require.Equal(t, OK, CodeOf(nil))
	require.Equal(t, ErrIO, CodeOf(io.EOF), "an error that carries no code")
	require.Equal(t, ErrTimeout, CodeOf(fmt.Errorf("late: %w", context.DeadlineExceeded)))
	require.Equal(t, ErrCanceled, CodeOf(fmt.Errorf("over: %w", context.Canceled)))
	require.Equal(t, ErrInvalid, CodeOf(errors.Join(io.EOF, ErrInvalid)))
}

func TestOpErrorText(t *testing.T) {
	peer := MakeAddr("tcp://10.0.0.7:9000", 2)
	for want, err := range map[string]error{
		"na: get tcp://10.0.0.7:9000#2: operation canceled": &OpError{Op: "get", Addr: peer, Err: ErrCanceled},
		"na: lookup: invalid argument":                      &OpError{Op: "lookup", Err: ErrInvalid},
		"na: put: no room today":                            &OpError{Op: "put", Err: WithText(ErrNoMemory, "no room today")},
	} {
		require.EqualError(t, err, want)
	}
	require.Same(t, io.EOF, (&OpError{Err: io.EOF}).Unwrap())
}
