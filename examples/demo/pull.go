package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

const (
	stopData  = 32 << 20  // minimum amount of data for the step "stop"
	stopChunk = 256 << 10 // size of the pieces in which it is pulled, one at a time
)

// pull makes data accessible during a call. The target pulls the data and returns its checksum.
func (o *origin) pull() (string, error) {
	o.say("pull: the target pulls %s of this process's memory", size(len(o.data)))
	bar := newBar(os.Stdout, int64(len(o.data)))
	o.onMoved = bar.show
	out, err := o.callPull(o.data, 0)
	o.onMoved = nil
	if err != nil {
		return "", err
	}
	bar.show(out.Moved)
	want := sha256.Sum256(o.data)
	o.say("       SHA-256 there %x…, here %x…", out.Sum[:min(8, len(out.Sum))], want[:8])
	if !bytes.Equal(out.Sum, want[:]) {
		return "", fmt.Errorf("the target's SHA-256 is %x, want %x", out.Sum, want)
	}
	return fmt.Sprintf("%s pulled by the target, SHA-256 equal at both ends", size(len(o.data))), nil
}

// stopPull makes the target cancel its pull halfway. The next call shows that the connection still
// works.
func (o *origin) stopPull() (string, error) {
	data := repeat(o.data, stopData)
	o.say("stop: the target pulls %s, but changes its mind", size(len(data)))
	out, err := o.callPull(data, int64(len(data)/4))
	if err != nil {
		return "", err
	}
	if !out.Canceled || out.Moved >= int64(len(data)) {
		return "", fmt.Errorf("the pull was not canceled: %d of %d bytes moved", out.Moved, len(data))
	}
	o.say("       canceled after %s", size(int(out.Moved)))
	return fmt.Sprintf("pull canceled by the target after %s of %s", size(int(out.Moved)), size(len(data))), nil
}

// callPull makes data readable for the target for the duration of one call.
func (o *origin) callPull(data []byte, stopAt int64) (out pullOutput, err error) {
	exposed, err := bulk.Create(o.hctx, bulk.Options{Access: bulk.ReadOnly}, data)
	if err != nil {
		return out, err
	}
	defer func() { // afterward no peer can access data
		err = errors.Join(err, exposed.CloseWait(o.ctx))
	}()
	h, err := o.hctx.Create(o.target, o.pullID)
	if err != nil {
		return out, err
	}
	defer h.Close()
	done := o.waits.Create(h.Cancel)
	if err := h.Forward(pullInput{exposed, stopAt}, func(_ *hg.Handle, err error) { done.Complete(err) }); err != nil {
		return out, err
	}
	if err := done.WaitContext(o.ctx); err != nil {
		return out, err
	}
	return out, h.Output(&out)
}
