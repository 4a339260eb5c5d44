package mercury_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// failures are the errors that a handler may return, by their names in docs/MERCURY.md.
var failures = map[string]error{
	"nil":                      nil,
	"mercury.ErrPermission":    mercury.ErrPermission,
	"mercury.ErrNoMethod":      mercury.ErrNoMethod,
	"mercury.ErrAgain":         mercury.ErrAgain,
	"mercury.ErrNoMemory":      mercury.ErrNoMemory,
	"mercury.ErrInvalid":       mercury.ErrInvalid,
	"mercury.ErrProtocol":      mercury.ErrProtocol,
	"mercury.ErrOverflow":      mercury.ErrOverflow,
	"mercury.ErrUnsupported":   mercury.ErrUnsupported,
	"mercury.ErrUnreachable":   mercury.ErrUnreachable,
	"mercury.ErrTimeout":       mercury.ErrTimeout,
	"mercury.ErrCanceled":      mercury.ErrCanceled,
	"mercury.ErrChecksum":      mercury.ErrChecksum,
	"mercury.ErrExists":        mercury.ErrExists,
	"mercury.ErrPeerLost":      mercury.ErrPeerLost,
	"mercury.ErrClosed":        mercury.ErrClosed,
	"mercury.ErrRevoked":       mercury.ErrRevoked,
	"mercury.ErrAnswered":      mercury.ErrAnswered,
	"mercury.ErrRemote":        mercury.ErrRemote,
	"mercury.ErrRefused":       mercury.ErrRefused,
	"mercury.Code(22)":         mercury.Code(22),
	"mercury.Code(64)":         mercury.Code(64),
	"mercury.Code(127)":        mercury.Code(127),
	"context.DeadlineExceeded": context.DeadlineExceeded,
	"context.Canceled":         context.Canceled,
	"errors.New":               errors.New("the handler's own"),
	"fs.ErrNotExist":           &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist},
	"panic":                    errPanic,
}

var errPanic = errors.New("panics")

// TestCodesInC checks that C gets for each error the code in docs/MERCURY.md, in the header of the
// response, or behind it from Margo's provider; and all codes of the package are there.
func TestCodesInC(t *testing.T) {
	page, err := os.ReadFile("../docs/MERCURY.md")
	require.NoError(t, err)
	source, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^\t(Err\w+) += codes\.`).FindAllSubmatch(source, -1) {
		require.Contains(t, failures, "mercury."+string(m[1]))
	}
	n := open(t, mercury.Config{})
	var name string
	work := func(context.Context, struct{}) (out struct{}, err error) {
		if err = failures[name]; err == errPanic {
			panic(err)
		}
		return out, err
	}
	plain, margo := mercury.Define[struct{}, struct{}]("plain"), mercury.DefineMargo[struct{}, struct{}]("margo").At(3)
	plain.Handle(n, work)
	margo.Handle(n, work)
	d := dialDouble(t, n, 53)
	seen := map[string]bool{}
	_, table, _ := strings.Cut(string(page), "|Go|C|Number|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[1:] {
		cells := strings.Split(row, "|")
		require.Len(t, cells, 5, row)
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			name = m[1]
			require.Contains(t, failures, name)
			require.False(t, seen[name], "%s is in two rows", name)
			seen[name] = true
			want := int(mercury.CodeOf(failures[name]))
			if cells[3] != "the same number" {
				want, err = strconv.Atoi(cells[3])
				require.NoError(t, err, row)
			}
			d.sendRequest(1, plain.ID(), 0, nil)
			r, _ := d.recvResponse(1)
			require.EqualValues(t, want, r.Code, "%s", name)
			d.sendRequest(2, margo.ID(), 0, make([]byte, 8))
			r, out := d.recvResponse(2)
			if name == "panic" {
				require.EqualValues(t, want, r.Code)
				continue
			}
			require.Zero(t, r.Code)
			require.EqualValues(t, want, binary.LittleEndian.Uint32(out), "%s, of Margo", name)
		}
	}
	for name := range failures {
		require.True(t, seen[name], "%s is not in docs/MERCURY.md", name)
	}
}

// TestRenumberedCodes checks that a code that was another one before Mercury 2.4.1 is reported with
// all its possible meanings; the code of a target of this package is reported as it is.
func TestRenumberedCodes(t *testing.T) {
	for code, want := range map[mercury.Code]string{
		21: "target: operation canceled",
		22: "target: HG_IO_ERROR, or HG_CHECKSUM_ERROR of Mercury 2.3",
		23: "target: HG_HOSTFIREWALL, or HG_CHECKSUM_ERROR of Mercury 2.4.0, HG_NA_ERROR of 2.3",
		24: "target: HG_CHECKSUM_ERROR, or HG_NA_ERROR of Mercury 2.4.0, HG_OTHER_ERROR of 2.3",
		25: "target: HG_NA_ERROR, or HG_OTHER_ERROR of Mercury 2.4.0",
		26: "target: the handler failed",
		27: "target: " + mercury.Code(27).Error(),
		64: "target: not found",
	} {
		require.EqualError(t, &mercury.RemoteError{Code: code}, want)
	}
}
