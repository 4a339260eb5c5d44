package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// noProgress shows nothing.
type noProgress struct{}

func (noProgress) File(string) {}
func (noProgress) Add(int64)   {}
func (noProgress) Skip(int64)  {}
func (noProgress) Grow(int64)  {}
func (noProgress) Note(string) {}

func copyStream(t *testing.T, ctx context.Context, addr string, o Options) (Counts, error) {
	t.Helper()
	o.Piece, o.Window, o.Timeout = testPiece, 4, patience
	node, at := openOrigin(t, addr)
	c, err := NewCopier(ctx, node, at, o)
	if err != nil {
		return Counts{}, err
	}
	defer c.Close()
	err = c.Run(ctx, noProgress{})
	return c.Counts(), err
}

// TestStreams checks that a stream of any size becomes a file, and a file a stream.
func TestStreams(t *testing.T) {
	addr, root := serveFiles(t)
	for _, size := range []int{0, 1, testPiece - 1, testPiece, testPiece + 1, 20*testPiece + 13} {
		for _, sha := range []bool{false, true} {
			data := noise(size)
			up, err := copyStream(t, t.Context(), addr, Options{Upload: true, Remote: "d/f", From: io.MultiReader(bytes.NewReader(data[:size/3]), bytes.NewReader(data[size/3:])), SHA256: sha})
			if size == 0 && !sha {
				require.ErrorIs(t, err, na.ErrNoEntry, "there is no directory d")
				require.NoError(t, os.Mkdir(filepath.Join(root, "d"), 0o777))
				continue
			}
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(root, "d", "f"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			if info, err := os.Stat(filepath.Join(root, "d", "f")); runtime.GOOS != "windows" {
				require.NoError(t, err)
				require.EqualValues(t, streamMode, info.Mode())
			}
			var back bytes.Buffer
			down, err := copyStream(t, t.Context(), addr, Options{Remote: "d/f", To: &back, SHA256: sha})
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, back.Bytes()))
			require.Equal(t, up, down)
			require.EqualValues(t, size, up.Bytes)
		}
	}
	requireNames(t, filepath.Join(root, "d"), "f")
	for _, o := range []Options{{Remote: "d", To: io.Discard}, {Upload: true, Remote: "d", From: &bytes.Buffer{}}} {
		_, err := copyStream(t, t.Context(), addr, o)
		require.ErrorIs(t, err, na.ErrInvalid)
	}
	_, err := copyStream(t, t.Context(), addr, Options{Remote: "none", To: io.Discard})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestStreamBreaks checks that a stream that fails, or is interrupted while no data arrives, leaves
// the file as it was, and no other file beside it.
func TestStreamBreaks(t *testing.T) {
	addr, root := serveFiles(t)
	writeFile(t, filepath.Join(root, "f"), noise(10))
	broken := errors.New("broken")
	_, err := copyStream(t, t.Context(), addr, Options{Upload: true, Remote: "f", From: io.MultiReader(bytes.NewReader(noise(3*testPiece)), failingStream{broken})})
	require.ErrorIs(t, err, broken)
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		_, _ = w.Write(noise(2*testPiece + 1)) // the last byte begins a piece, which is waited for then
		cancel(broken)
	}()
	_, err = copyStream(t, ctx, addr, Options{Upload: true, Remote: "f", From: r})
	require.ErrorIs(t, err, broken)
	_, err = copyStream(t, t.Context(), addr, Options{Remote: "f", To: failingStream{broken}})
	require.ErrorIs(t, err, broken)
	got, err := os.ReadFile(filepath.Join(root, "f"))
	require.NoError(t, err)
	require.Equal(t, noise(10), got)
	requireNames(t, root, "f")
}

// TestStreamIsVerified checks that damaged data is not written.
func TestStreamIsVerified(t *testing.T) {
	var out bytes.Buffer
	w := streamWriter{newSums(false), &out}
	data := noise(100)
	require.NoError(t, w.write(data[:50], checksum(data[:50])))
	require.ErrorIs(t, w.write(data[50:], checksum(data[:50])), na.ErrChecksum)
	require.Equal(t, data[:50], out.Bytes())
}

// failingStream fails to read and to write.
type failingStream struct{ err error }

func (f failingStream) Read([]byte) (int, error)  { return 0, f.err }
func (f failingStream) Write([]byte) (int, error) { return 0, f.err }
