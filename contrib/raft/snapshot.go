package raftqs

import (
	"context"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A snapshot is the input of InstallSnapshot.
type snapshot struct {
	Request []byte // a raft.InstallSnapshotRequest, by wire
	Data    qs.Source
}

// timeoutScale is how much of a snapshot has Options.Timeout to itself, in bytes; raft's own transport has the same.
const timeoutScale = raft.DefaultTimeoutScale

// InstallSnapshot implements raft.Transport. It lends data to the follower, which pulls it as fast as it writes: up to 4 MiB are read ahead. When
// it has returned nobody begins to read from data.
func (t *Transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	ctx, stop := t.node.HG().NA().WithTimeout(t.ctx, t.o.Timeout*time.Duration(1+args.Size/timeoutScale))
	defer stop()
	peer, err := t.peer(ctx, id, target)
	if err != nil {
		return err
	}
	req, err := wire{}.Append(nil, args)
	if err != nil {
		return err
	}
	out, err := t.snapshot.Call(ctx, peer, snapshot{Request: req, Data: qs.Reader(io.LimitReader(data, args.Size))})
	if err != nil {
		return t.explain(err)
	}
	return wire{}.Decode(out, resp)
}

// serveSnapshot has raft take a snapshot.
func (t *Transport) serveSnapshot(ctx context.Context, in snapshot) ([]byte, error) {
	req := &raft.InstallSnapshotRequest{}
	if err := (wire{}).Decode(in.Request, req); err != nil {
		return nil, qs.Refuse(qs.Errorf(qs.ErrBadInput, "%w", err))
	}
	resp, err := serve[raft.InstallSnapshotResponse](ctx, t, req, io.LimitReader(in.Data.Reader(ctx), req.Size), false)
	if err != nil {
		return nil, err
	}
	return wire{}.Append(nil, resp)
}
