package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// An origin performs the steps. Only the goroutine that does so calls Trigger, while it waits. Callbacks therefore run
// one at a time and need no lock.
type origin struct {
	ctx    context.Context // limits every wait
	child  *child
	data   []byte
	out    io.Writer
	class  *hg.Class
	hctx   *hg.Context
	waits  *request.Class
	target hg.Addr
	square hg.ID
	pullID hg.ID
	hold   hg.ID

	onMoved func(moved int64)
	onFault func(peer hg.Addr)
	holding *request.Request // completes when the target holds a request
}

// newOrigin opens a class that does not listen. The target reaches it over the connection that the origin establishes.
func newOrigin(ctx context.Context, child *child, data []byte, out io.Writer) (*origin, error) {
	class, err := hg.Open(child.opens, hg.Config{})
	if err != nil {
		return nil, err
	}
	o := &origin{ctx: ctx, child: child, data: data, out: out, class: class}
	if err := o.register(); err != nil {
		return nil, err
	}
	if o.hctx, err = class.NewContext(); err != nil {
		return nil, err
	}
	o.hctx.OnFault(func(peer hg.Addr, _ error) {
		if o.onFault != nil {
			o.onFault(peer)
		}
	})
	o.waits = request.NewClass(o.hctx)
	o.target, err = o.hctx.LookupWait(ctx, child.addr)
	return o, err
}

func (o *origin) register() error {
	var errs [5]error
	o.square, errs[0] = o.class.Register(rpcSquare, nil)
	o.pullID, errs[1] = o.class.Register(rpcPull, nil)
	o.hold, errs[2] = o.class.Register(rpcHold, nil)
	_, errs[3] = o.class.RegisterRPC(hg.RPC{Name: rpcMoved, OneWay: true, Handler: func(h hg.Request) error {
		var moved int64
		if err := h.Input(&moved); err != nil {
			return err
		}
		if o.onMoved != nil {
			o.onMoved(moved)
		}
		return nil
	}})
	_, errs[4] = o.class.RegisterRPC(hg.RPC{Name: rpcHolding, OneWay: true, Handler: func(hg.Request) error {
		o.holding.Complete(nil)
		return nil
	}})
	return errors.Join(errs[:]...)
}

func (o *origin) say(format string, args ...any) { fmt.Fprintf(o.out, format+"\n", args...) }

// end closes everything and verifies that nothing is left.
func (o *origin) end() (string, error) {
	if err := o.class.Shutdown(o.ctx); err != nil {
		return "", err
	}
	s := o.hctx.Stats()
	if s.Handles != 0 || s.NA.Regions != 0 || s.NA.Outstanding != 0 || s.Queued != 0 {
		return "", fmt.Errorf("something is left: %+v", s)
	}
	return "0 handles, 0 regions and 0 operations left", nil
}
