package pieces_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
)

func newReader(all ...string) *pieces.Reader {
	return &pieces.Reader{Check: func() error { return nil }, Next: func() ([]byte, error) {
		if len(all) == 0 {
			return nil, io.EOF
		}
		next := all[0]
		all = all[1:]
		return []byte(next), nil
	}}
}

func TestReader(t *testing.T) {
	require.NoError(t, iotest.TestReader(newReader("one", "two", "three"), []byte("onetwothree")))

	var b bytes.Buffer
	n, err := newReader("one", "two").WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, 6, n)
	require.Equal(t, "onetwo", b.String())

	n, err = newReader("one", "two").WriteTo(iotest.TruncateWriter(&b, 0))
	require.NoError(t, err)
	require.EqualValues(t, 6, n)
	n, err = newReader("one", "two").WriteTo(shortWriter{})
	require.ErrorIs(t, err, io.ErrShortWrite)
	require.EqualValues(t, 1, n)

	gone, r := error(nil), newReader("one", "two")
	r.Check = func() error { return gone }
	p := make([]byte, 2)
	_, err = r.Read(p)
	require.NoError(t, err)
	gone = errors.New("gone")
	_, err = r.Read(p)
	require.ErrorIs(t, err, gone, "although there are bytes")
}

type shortWriter struct{}

func (shortWriter) Write([]byte) (int, error) { return 1, nil }

// limitedWriter takes up to most bytes, three at a time.
type limitedWriter struct {
	pieces.Writer
	got  []byte
	room []byte
	most int
}

var errFull = errors.New("full")

func newLimitedWriter(most int) *limitedWriter {
	w := &limitedWriter{most: most}
	w.Writer = pieces.Writer{
		Room: func() ([]byte, error) {
			w.room = make([]byte, min(3, w.most-len(w.got)))
			return w.room, nil
		},
		Add:  func(n int) error { w.got = append(w.got, w.room[:n]...); return nil },
		Full: func() error { return errFull },
	}
	return w
}

func TestWriter(t *testing.T) {
	w := newLimitedWriter(10)
	n, err := io.WriteString(w, "12345678")
	require.NoError(t, err)
	require.Equal(t, 8, n)
	n, err = io.WriteString(w, "901")
	require.ErrorIs(t, err, errFull)
	require.Equal(t, 2, n)
	require.Equal(t, "1234567890", string(w.got))

	for _, c := range []struct {
		in  string
		err error
	}{{"", nil}, {"1234567890", nil}, {"12345678901", errFull}} {
		w = newLimitedWriter(10)
		n, err := w.ReadFrom(iotest.DataErrReader(strings.NewReader(c.in)))
		require.ErrorIs(t, err, c.err)
		require.EqualValues(t, min(len(c.in), 10), n)
		require.Equal(t, c.in[:n], string(w.got))
	}
	_, err = newLimitedWriter(10).ReadFrom(iotest.ErrReader(errFull))
	require.ErrorIs(t, err, errFull)
	_, err = newLimitedWriter(10).ReadFrom(idleReader{})
	require.ErrorIs(t, err, io.ErrNoProgress)
}

type idleReader struct{}

func (idleReader) Read([]byte) (int, error) { return 0, nil }

// TestWriterSkips checks that the memory that Room has returned is given back when a Read has
// filled nothing of it, also when it panics.
func TestWriterSkips(t *testing.T) {
	skipped := 0
	w := newLimitedWriter(10)
	w.Skip = func() { skipped++ }
	n, err := w.ReadFrom(iotest.DataErrReader(strings.NewReader("1234")))
	require.NoError(t, err)
	require.EqualValues(t, 4, n)
	require.Zero(t, skipped)
	_, err = w.ReadFrom(strings.NewReader(""))
	require.NoError(t, err)
	require.Equal(t, 1, skipped)
	require.Panics(t, func() { _, _ = w.ReadFrom(panickingReader{}) })
	require.Equal(t, 2, skipped)
}

type panickingReader struct{}

func (panickingReader) Read([]byte) (int, error) { panic("read") }
