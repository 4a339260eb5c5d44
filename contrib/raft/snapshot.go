package raftqs

import (
	"context"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A snapshotInput is the input of the InstallSnapshot method.
type snapshotInput struct {
	Request []byte    // raft.InstallSnapshotRequest, encoded by wireCodec
	Data    qs.Source // the snapshot, which the follower pulls
}

// timeoutScale is the number of snapshot bytes that extend the timeout by another Options.Timeout.
// It equals that of raft's own transport.
const timeoutScale = raft.DefaultTimeoutScale

// InstallSnapshot implements raft.Transport. It lends data to the follower, which pulls it as fast
// as it can write it. The leader reads ahead by at most 4 MiB. InstallSnapshot blocks until the
// follower has answered. No Read of data begins after it has returned.
func (t *Transport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	ctx, stop := t.node.HG().NA().WithTimeout(t.ctx,
		t.opts.Timeout*time.Duration(1+args.Size/timeoutScale))
	defer stop()
	peer, err := t.peerFor(ctx, id, target)
	if err != nil {
		return err
	}
	req, err := wireCodec{}.Append(nil, args)
	if err != nil {
		return err
	}
	out, err := t.snapshot.Call(
		ctx,
		peer,
		snapshotInput{Request: req, Data: qs.Reader(io.LimitReader(data, args.Size))},
	)
	if err != nil {
		return t.orCloseCause(err)
	}
	return wireCodec{}.Decode(out, resp)
}

// serveSnapshot passes a snapshot to raft and returns the encoded response.
func (t *Transport) serveSnapshot(ctx context.Context, in snapshotInput) ([]byte, error) {
	req := &raft.InstallSnapshotRequest{}
	if err := (wireCodec{}).Decode(in.Request, req); err != nil {
		return nil, qs.Refuse(qs.Errorf(qs.ErrBadInput, "%w", err))
	}
	resp, err := serveRequest[raft.InstallSnapshotResponse](
		ctx,
		t,
		req,
		io.LimitReader(in.Data.Reader(ctx), req.Size),
		false,
	)
	if err != nil {
		return nil, err
	}
	return wireCodec{}.Append(nil, resp)
}
