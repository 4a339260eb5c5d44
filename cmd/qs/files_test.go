package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func dialServer(t *testing.T, s *server) *client {
	t.Helper()
	c, err := dial(&network{timeout: 5 * time.Second}, s.addr, patience, fileRPCs)
	require.NoError(t, err)
	t.Cleanup(c.close)
	return c
}

// TestHostileOrigin: what an origin must not do is an error of its call, and the target goes on.
func TestHostileOrigin(t *testing.T) {
	s := serveFiles(t, "")
	data := noise(1000)
	writeFile(t, filepath.Join(s.root, "f"), data)
	a, b := dialServer(t, s), dialServer(t, s)
	ctx := t.Context()
	buf, err := newBuffer(a.hctx, bulk.ReadWrite, 1000)
	require.NoError(t, err)
	open := func(in openRequest) uint64 {
		t.Helper()
		var r openReply
		require.NoError(t, a.call(ctx, rpcOpen, &in, &r))
		return r.ID
	}
	for _, write := range []bool{false, true} {
		want := func(code na.Code, text string, c *client, rpc string, in func(id uint64) any) {
			t.Helper()
			id := open(openRequest{Path: "f", Write: write, Stamp: stamp{Size: 1000, Mode: 0o600}})
			err := c.call(ctx, rpc, in(id), nil)
			require.ErrorIs(t, err, code)
			require.ErrorContains(t, err, text)
			_ = a.call(ctx, rpcClose, &closeRequest{ID: id}, nil)
		}
		piece := func(offset, size int64) func(id uint64) any {
			return func(id uint64) any { return &pieceRequest{ID: id, Offset: offset, Size: size, Memory: buf.h} }
		}
		want(na.ErrNoEntry, "there is no transfer", b, rpcPiece, piece(0, 1000)) // the number is of another session
		want(na.ErrNoEntry, "there is no transfer", b, rpcClose, func(id uint64) any { return &closeRequest{ID: id} })
		want(na.ErrNoEntry, "there is no transfer", b, rpcSeek, func(id uint64) any { return &seekRequest{ID: id} })
		want(na.ErrNoEntry, "there is no transfer", a, rpcPiece, func(id uint64) any { return &pieceRequest{ID: id + 1, Size: 1, Memory: buf.h} })
		want(na.ErrInvalid, "a piece of 0 bytes, want 1 to", a, rpcPiece, piece(0, 0))
		want(na.ErrInvalid, "a piece of -1 bytes", a, rpcPiece, piece(0, -1))
		want(na.ErrInvalid, "a piece of", a, rpcPiece, piece(0, maxPiece+1))
		want(na.ErrInvalid, "a piece of 1 bytes", a, rpcPiece, func(id uint64) any { return &pieceRequest{ID: id, Size: 1} })
		want(na.ErrInvalid, "outside the remote handle", a, rpcPiece, func(id uint64) any {
			small, err := newBuffer(a.hctx, bulk.ReadWrite, 10)
			require.NoError(t, err)
			return &pieceRequest{ID: id, Size: 1000, Memory: small.h}
		})
		want(na.ErrProtocol, "want 0", a, rpcPiece, piece(500, 500))
		want(na.ErrProtocol, "want 0", a, rpcPiece, piece(-500, 500))
		if write {
			want(na.ErrProtocol, "0 of 1000 bytes have arrived", a, rpcClose, func(id uint64) any { return &closeRequest{ID: id, Commit: true} })
			want(na.ErrChecksum, "damaged on the way", a, rpcPiece, piece(0, 1000))
		} else {
			want(na.ErrInvalid, "1001 is not an offset to go on from", a, rpcSeek, func(id uint64) any { return &seekRequest{ID: id, At: 1001} })
			want(na.ErrInvalid, "-1 is not an offset to go on from", a, rpcSeek, func(id uint64) any { return &seekRequest{ID: id, At: -1} })
		}
	}
	// Nothing is left to look at when a piece has come.
	seekID := open(openRequest{Path: "g", Write: true, Stamp: stamp{Size: 1000}})
	require.NoError(t, a.call(ctx, rpcPiece, &pieceRequest{ID: seekID, Size: 500, Memory: buf.h, CRC: crcOf(buf.mem[:500])}, nil))
	err = a.call(ctx, rpcSeek, &seekRequest{ID: seekID}, nil)
	require.ErrorIs(t, err, na.ErrProtocol)
	require.ErrorContains(t, err, "g: there is nothing to look at behind the first piece")
	require.NoError(t, a.call(ctx, rpcClose, &closeRequest{ID: seekID}, nil))
	require.NoError(t, os.Remove(filepath.Join(s.root, "g.qs-part")))
	require.NoError(t, os.Remove(filepath.Join(s.root, "g.qs-part.journal")))
	// The last bites of a piece cannot be pulled.
	short, err := newBuffer(a.hctx, bulk.ReadOnly, 2*bite+1)
	require.NoError(t, err)
	id := open(openRequest{Path: "g", Write: true, Stamp: stamp{Size: 5 * bite}})
	err = a.call(ctx, rpcPiece, &pieceRequest{ID: id, Size: 5 * bite, Memory: short.h}, nil)
	require.ErrorIs(t, err, na.ErrInvalid)
	require.ErrorContains(t, err, "outside the remote handle")
	err = a.call(ctx, rpcClose, &closeRequest{ID: id, Commit: true}, nil)
	if !errors.Is(err, na.ErrNoEntry) { // the transfer that this ended is still being taken down
		require.ErrorContains(t, err, "outside the remote handle")
	}

	require.ErrorIs(t, a.call(ctx, rpcOpen, &openRequest{Path: "g", Write: true, Stamp: stamp{Size: -1}}, nil), na.ErrInvalid)
	require.ErrorIs(t, a.call(ctx, rpcOpen, &openRequest{Path: "."}, nil), na.ErrInvalid)
	require.ErrorIs(t, a.call(ctx, rpcOpen, &openRequest{Path: "none"}, nil), na.ErrNoEntry)

	var r openReply
	require.NoError(t, a.call(ctx, rpcOpen, &openRequest{Path: "f"}, &r))
	var p pieceReply
	require.NoError(t, a.call(ctx, rpcPiece, &pieceRequest{ID: r.ID, Size: 1000, Memory: buf.h}, &p))
	require.Equal(t, data, buf.mem)
	require.Equal(t, crcOf(data), p.CRC)
	requireNames(t, s.root, "f")
}

// TestSecondUpload: a second upload of a file ends the first, by whatever path.
func TestSecondUpload(t *testing.T) {
	s := serveFiles(t, "")
	a, b := dialServer(t, s), dialServer(t, s)
	in := &openRequest{Path: "f", Write: true, Stamp: stamp{Size: 10}}
	var first, second openReply
	require.NoError(t, a.call(t.Context(), rpcOpen, in, &first))
	in.Path = "./d/../f"
	require.NoError(t, b.call(t.Context(), rpcOpen, in, &second))
	err := a.call(t.Context(), rpcClose, &closeRequest{ID: first.ID, Commit: true}, nil)
	require.ErrorIs(t, err, na.ErrNoEntry)
	require.NoError(t, b.call(t.Context(), rpcClose, &closeRequest{ID: second.ID}, nil))
	requireNames(t, s.root)
}

// TestPanickingWorker: a request that panics fails, as with hg's own handlers, and the process lives.
func TestPanickingWorker(t *testing.T) {
	_, err := recovered(func(hg.Incoming, *pathRequest) (entry, error) { panic("oops") }, hg.Incoming{}, nil)
	require.ErrorIs(t, err, hg.ErrPanic)
	require.ErrorContains(t, err, "panicked: oops")
}
