package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestHostileOrigin checks that an invalid request of an origin is an error of its call, and the
// target continues.
func TestHostileOrigin(t *testing.T) {
	addr, root := serveFiles(t)
	data := noise(1000)
	writeFile(t, filepath.Join(root, "f"), data)
	a, b := openClient(t, addr), openClient(t, addr)
	ctx := t.Context()
	buf, err := newBuffer(a.node.HG(), bulk.ReadWrite, 1000)
	require.NoError(t, err)
	open := func(in openRequest) uint64 {
		t.Helper()
		r, err := callMethod(ctx, a, methodOpen, in)
		require.NoError(t, err)
		return r.ID
	}
	closeFile := func(c *client, in closeRequest) error {
		_, err := callMethod(ctx, c, methodClose, in)
		return err
	}
	seek := func(c *client, in seekRequest) error {
		_, err := callMethod(ctx, c, methodSeek, in)
		return err
	}
	ask := func(c *client, in pieceRequest) (r pieceReply, err error) {
		p, err := c.forward(&in)
		if err == nil {
			r, err = p.wait(ctx)
		}
		return r, err
	}
	for _, write := range []bool{false, true} {
		want := func(code na.Code, text string, try func(id uint64) error) {
			t.Helper()
			id := open(openRequest{Path: "f", Write: write, Stamp: stamp{Size: 1000, Mode: 0o600}})
			err := try(id)
			require.ErrorIs(t, err, code)
			require.ErrorContains(t, err, text)
			_ = closeFile(a, closeRequest{ID: id})
		}
		asks := func(c *client, in pieceRequest) func(id uint64) error {
			return func(id uint64) error {
				in.ID += id
				_, err := ask(c, in)
				return err
			}
		}
		piece := func(offset, size int64) func(id uint64) error {
			return asks(a, pieceRequest{Offset: offset, Size: size, Memory: buf.h})
		}
		want(na.ErrCanceled, "does not exist or was canceled", asks(b, pieceRequest{Size: 1000, Memory: buf.h})) // the number is of another session
		want(na.ErrCanceled, "does not exist or was canceled", func(id uint64) error { return closeFile(b, closeRequest{ID: id}) })
		want(na.ErrCanceled, "does not exist or was canceled", func(id uint64) error { return seek(b, seekRequest{ID: id}) })
		want(na.ErrCanceled, "does not exist or was canceled", asks(a, pieceRequest{ID: 1, Size: 1, Memory: buf.h}))
		want(na.ErrInvalid, "chunk of 0 bytes, want 1 to", piece(0, 0))
		want(na.ErrInvalid, "chunk of -1 bytes", piece(0, -1))
		want(na.ErrInvalid, "chunk of", piece(0, MaxPiece+1))
		want(na.ErrInvalid, "chunk of 1 bytes", asks(a, pieceRequest{Size: 1}))
		small, err := newBuffer(a.node.HG(), bulk.ReadWrite, 10)
		require.NoError(t, err)
		want(na.ErrInvalid, "outside the remote handle", asks(a, pieceRequest{Size: 1000, Memory: small.h}))
		want(na.ErrProtocol, "want 0", piece(500, 500))
		want(na.ErrProtocol, "want 0", piece(-500, 500))
		if write {
			want(na.ErrProtocol, "received 0 of 1000 bytes", func(id uint64) error { return closeFile(a, closeRequest{ID: id, Commit: true}) })
			want(na.ErrChecksum, "is corrupt", piece(0, 1000))
		} else {
			want(na.ErrInvalid, "invalid offset 1001 to resume from", func(id uint64) error { return seek(a, seekRequest{ID: id, At: 1001}) })
			want(na.ErrInvalid, "invalid offset -1 to resume from", func(id uint64) error { return seek(a, seekRequest{ID: id, At: -1}) })
		}
	}
	// Nothing is left to check when a piece has arrived.
	seekID := open(openRequest{Path: "g", Write: true, Stamp: stamp{Size: 1000}})
	_, err = ask(a, pieceRequest{ID: seekID, Size: 500, Memory: buf.h, CRC: checksum(buf.mem[:500])})
	require.NoError(t, err)
	err = seek(a, seekRequest{ID: seekID})
	require.ErrorIs(t, err, na.ErrProtocol)
	require.ErrorContains(t, err, "g: nothing to verify after the first chunk")
	require.NoError(t, closeFile(a, closeRequest{ID: seekID}))
	require.NoError(t, os.Remove(filepath.Join(root, "g.qs-part")))
	require.NoError(t, os.Remove(filepath.Join(root, "g.qs-part.journal")))
	// The last bites of a piece cannot be pulled.
	short, err := newBuffer(a.node.HG(), bulk.ReadOnly, 2*chunkSize+1)
	require.NoError(t, err)
	id := open(openRequest{Path: "g", Write: true, Stamp: stamp{Size: 5 * chunkSize}})
	_, err = ask(a, pieceRequest{ID: id, Size: 5 * chunkSize, Memory: short.h})
	require.ErrorIs(t, err, na.ErrInvalid)
	require.ErrorContains(t, err, "outside the remote handle")
	err = closeFile(a, closeRequest{ID: id, Commit: true})
	if !errors.Is(err, na.ErrCanceled) { // the transfer that this ended is still being taken down
		require.ErrorContains(t, err, "outside the remote handle")
	}

	for _, c := range []struct {
		in   openRequest
		code na.Code
	}{
		{openRequest{Path: "g", Write: true, Stamp: stamp{Size: -1}}, na.ErrInvalid},
		{openRequest{Path: "."}, na.ErrInvalid},
		{openRequest{Path: "none"}, na.ErrNoEntry},
	} {
		_, err := callMethod(ctx, a, methodOpen, c.in)
		require.ErrorIs(t, err, c.code)
	}

	p, err := ask(a, pieceRequest{ID: open(openRequest{Path: "f"}), Size: 1000, Memory: buf.h})
	require.NoError(t, err)
	require.Equal(t, data, buf.mem)
	require.Equal(t, checksum(data), p.CRC)
	requireNames(t, root, "f")
}

// TestPieceOutOfOrder checks that a piece that arrives before the one in front of it in the file
// waits for that.
func TestPieceOutOfOrder(t *testing.T) {
	addr, root := serveFiles(t)
	data := noise(1500)
	writeFile(t, filepath.Join(root, "f"), data)
	c := openClient(t, addr)
	buf, err := newBuffer(c.node.HG(), bulk.ReadWrite, 1500)
	require.NoError(t, err)
	move := func(in openRequest) {
		t.Helper()
		opened, err := callMethod(t.Context(), c, methodOpen, in)
		require.NoError(t, err)
		var pieces []*pending
		for _, at := range []int64{1000, 500, 0} {
			p, err := c.forward(&pieceRequest{ID: opened.ID, Offset: at, At: at, Size: 500, Memory: buf.h, CRC: checksum(data[:at+500])})
			require.NoError(t, err)
			pieces = append(pieces, p)
		}
		for _, p := range pieces {
			_, err := p.wait(t.Context())
			require.NoError(t, err)
		}
		_, err = callMethod(t.Context(), c, methodClose, closeRequest{ID: opened.ID, Commit: true, CRC: checksum(data)})
		require.NoError(t, err)
	}
	move(openRequest{Path: "f"})
	require.Equal(t, data, buf.mem)
	move(openRequest{Path: "g", Write: true, Stamp: stamp{Size: 1500, Mode: 0o600}})
	got, err := os.ReadFile(filepath.Join(root, "g"))
	require.NoError(t, err)
	require.Equal(t, data, got)
}

// TestSecondUpload checks that a second upload of a file, by whatever path, is refused while the
// origin of the first answers.
func TestSecondUpload(t *testing.T) {
	addr, root := serveFiles(t)
	a, b := openClient(t, addr), openClient(t, addr)
	in := openRequest{Path: "f", Write: true, Stamp: stamp{Size: 10}}
	first, err := callMethod(t.Context(), a, methodOpen, in)
	require.NoError(t, err)
	in.Path = "./d/../f"
	_, err = callMethod(t.Context(), b, methodOpen, in)
	require.ErrorIs(t, err, na.ErrAgain)
	require.Regexp(t, `: f is being written by another copy from 127\.0\.0\.1:\d+: `, err)
	again, err := callMethod(t.Context(), a, methodOpen, in)
	require.NoError(t, err, "of the same origin")
	_, err = callMethod(t.Context(), a, methodClose, closeRequest{ID: first.ID, Commit: true})
	require.ErrorIs(t, err, na.ErrCanceled)
	_, err = callMethod(t.Context(), a, methodClose, closeRequest{ID: again.ID})
	require.NoError(t, err)
	second, err := callMethod(t.Context(), b, methodOpen, in)
	require.NoError(t, err)
	_, err = callMethod(t.Context(), b, methodClose, closeRequest{ID: second.ID})
	require.NoError(t, err)
	requireNames(t, root)
}

// TestTransfersOfClient checks that a client that takes all the transfers that it can get, by
// several sessions, leaves enough for others, and gets them again when it ends some.
func TestTransfersOfClient(t *testing.T) {
	s, addr, root := newServer(t)
	writeFile(t, filepath.Join(root, "f"), noise(10))
	hogs := []*client{openClient(t, addr), openClient(t, addr)}
	in := openRequest{Path: "f"}
	var last openReply
	for i := range maxTransfersOfClient {
		var err error
		last, err = callMethod(t.Context(), hogs[i%2], methodOpen, in)
		require.NoError(t, err)
	}
	for _, hog := range append(hogs, openClient(t, addr)) {
		_, err := callMethod(t.Context(), hog, methodOpen, in)
		require.ErrorIs(t, err, na.ErrAgain)
		require.ErrorContains(t, err, "too many transfers of this client: 128; try again later")
	}
	_, err := s.open(qs.Caller{Identity: na.Identity{Transport: "tcp", Remote: "10.0.0.1:7"}}, in)
	require.NoError(t, err)
	_, err = callMethod(t.Context(), hogs[1], methodClose, closeRequest{ID: last.ID})
	require.NoError(t, err)
	_, err = callMethod(t.Context(), hogs[0], methodOpen, in)
	require.NoError(t, err)
}

// TestClientOf checks that sessions of one machine, or of one certificate, count as one client.
func TestClientOf(t *testing.T) {
	for _, c := range []struct {
		want string
		id   na.Identity
	}{
		{"10.0.0.1", na.Identity{Transport: "tcp", Remote: "10.0.0.1:7"}},
		{"10.0.0.1", na.Identity{Transport: "udp", Remote: "[::ffff:10.0.0.1]:7"}},
		{"2001:db8:1:2::/64", na.Identity{Transport: "tcp", Remote: "[2001:db8:1:2:3:4:5:6]:7"}},
		{"fe80::/64", na.Identity{Transport: "tcp", Remote: "[fe80::1%eth0]:7"}},
		{"sm", na.Identity{Transport: "sm", Remote: "pid 4711, uid 1000"}},
		{"certificate kv-1", na.Identity{Transport: "tcp", Remote: "10.0.0.1:7", Secure: true, Name: "kv-1"}},
		{"10.0.0.1", na.Identity{Transport: "tcp", Remote: "10.0.0.1:7", Secure: true}},
		{"10.0.0.1", na.Identity{Transport: "tcp", Remote: "10.0.0.1:7", Name: "claimed"}},
	} {
		require.Equal(t, c.want, clientOf(qs.Caller{Identity: c.id}))
	}
}

// TestHostileTarget checks that names that a target lists do not lead out of the destination.
func TestHostileTarget(t *testing.T) {
	for _, name := range []string{"../evil", "a/../../evil", "/evil", "..", ".", "", `\\evil`} {
		t.Run(name, func(t *testing.T) {
			addr := serveNode(t, func(n *qs.Node) {
				methodStat.Handle(n, func(context.Context, pathRequest) (entry, error) { return entry{Name: "d", Kind: directory}, nil })
				methodList.Handle(n, func(context.Context, listRequest) (listReply, error) {
					return listReply{[]entry{{Name: name, Kind: regular, Stamp: stamp{Size: 1}}}}, nil
				})
			})
			dir := t.TempDir()
			node, at := openOrigin(t, addr)
			_, err := NewCopier(t.Context(), node, at, Options{Folder: dir, Local: "to", Remote: "d", Into: true, Timeout: patience})
			require.ErrorIs(t, err, na.ErrProtocol)
			require.ErrorContains(t, err, fmt.Sprintf("invalid entry %q in d: protocol error", name))
			requireNames(t, dir)
		})
	}
}
