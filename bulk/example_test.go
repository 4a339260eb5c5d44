package bulk_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// Example stores a file of an origin at a target: the RPC carries a handle of the data, and the
// target pulls as much as it needs.
func Example() {
	target, tctx := open("tcp://127.0.0.1:0")
	origin, octx := open("tcp://")

	type store struct {
		Name string
		Data *bulk.Handle
	}
	must(target.Register("store", func(h hg.Request) error {
		var in store
		if err := h.Input(&in); err != nil {
			return err
		}
		buf := make([]byte, in.Data.Len()) // a real target has a limit here
		local, err := bulk.Create(tctx, bulk.Options{Access: bulk.LocalOnly}, buf)
		if err != nil {
			return err
		}
		_ = h.Detach() // it is answered in done
		_, err = bulk.Transfer(tctx, bulk.Spec{
			Dir: bulk.Pull, Peer: h.Peer(), Remote: in.Data, Local: local, Size: in.Data.Len(),
		}, func(op *bulk.Op, err error) {
			if err != nil {
				_ = h.RespondError(err, nil)
				return
			}
			_ = h.Respond(fmt.Sprintf("%s: %d bytes, %d of them x", in.Name, op.Moved(), bytes.Count(buf, []byte("x"))), nil)
		})
		return err
	}))

	data, err := bulk.Create(octx, bulk.Options{Access: bulk.ReadOnly}, []byte("one segment of x, "), bytes.Repeat([]byte("x"), 3_000_000))
	check(err)
	h, err := octx.Create(target.Addr(), must(origin.Register("store", nil)))
	check(err)
	done := false
	check(h.Forward(&store{"file", data}, func(h *hg.Handle, err error) {
		check(err)
		var answer string
		check(h.Output(&answer))
		fmt.Println(answer)
		done = true
	}))
	for !done {
		for _, hctx := range []*hg.Context{octx, tctx} { // one process is both here
			_ = hctx.Progress(0)
			hctx.Trigger(0)
		}
	}
	h.Close()
	check(data.CloseWait(context.Background())) // from here on no peer can read the data
	check(origin.Shutdown(context.Background()))
	check(target.Shutdown(context.Background()))
	// Output: file: 3000018 bytes, 3000001 of them x
}

// ExampleNewReader reads the memory of an origin as a stream in a handler: it is never held whole.
// Several pieces are in flight while the handler computes, and while it waits it drives its context
// itself.
func ExampleNewReader() {
	target, tctx := open("tcp://127.0.0.1:0")
	origin, octx := open("tcp://")

	must(target.Register("checksum", func(h hg.Request) error {
		var data bulk.Handle
		if err := h.Input(&data); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r, err := bulk.NewReader(ctx, tctx, bulk.Stream{Peer: h.Peer(), Handle: &data, Chunk: 256 << 10})
		if err != nil {
			return err
		}
		defer r.Close()
		sum := crc32.NewIEEE()
		n, err := io.Copy(sum, r)
		if err != nil {
			return err
		}
		return h.Respond(fmt.Sprintf("%d bytes, %08x", n, sum.Sum32()), nil)
	}))

	data, err := bulk.Create(octx, bulk.Options{Access: bulk.ReadOnly}, bytes.Repeat([]byte("quicksilver "), 250_000))
	check(err)
	h, err := octx.Create(target.Addr(), must(origin.Register("checksum", nil)))
	check(err)
	done := false
	check(h.Forward(data, func(h *hg.Handle, err error) {
		check(err)
		var answer string
		check(h.Output(&answer))
		fmt.Println(answer)
		done = true
	}))
	for !done {
		for _, hctx := range []*hg.Context{octx, tctx} { // one process is both here
			_ = hctx.Progress(0)
			hctx.Trigger(0)
		}
	}
	h.Close()
	check(data.CloseWait(context.Background()))
	check(origin.Shutdown(context.Background()))
	check(target.Shutdown(context.Background()))
	// Output: 3000000 bytes, 61d9fb8b
}

func open(addr string) (*hg.Class, *hg.Context) {
	cls := must(hg.Open(addr, hg.Config{}))
	return cls, must(cls.NewContext())
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
