// Command bulk passes two bulk handles to a target in one call: a text, which the target pulls, and memory for the
// result, which it pushes back.
//
//	origin                                             target
//	Create(text, ReadOnly), Create(room, WriteOnly)
//	Forward{text, room} ────────────────────────────►  handler
//	text ◄═════════════════════ Transfer(Pull) ══════  local memory
//	                                                   (makes it upper case)
//	room ◄═════════════════════ Transfer(Push) ══════  local memory
//	callback ◄───────────────────────────────────────  Respond
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// A Job is the input of the call.
type Job struct{ Text, Room *bulk.Handle }

// maxText limits the memory for one request.
const maxText = 16 << 20

func main() { run(os.Stdout) }

func run(out io.Writer) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	target := open("tcp://127.0.0.1:0", upper)
	defer func() { check(target.Class().Shutdown(ctx)) }()
	go func() {
		for target.Progress(-1) == nil {
			target.Trigger(0)
		}
	}()

	origin := open("tcp://", nil)
	defer func() { check(origin.Class().Shutdown(ctx)) }()
	data := bytes.Repeat([]byte("all that glitters is not gold, "), 100_000)
	result := make([]byte, len(data))
	text := must(bulk.Create(origin, bulk.Options{Access: bulk.ReadOnly}, data))
	room := must(bulk.Create(origin, bulk.Options{Access: bulk.WriteOnly}, result))

	h := must(origin.Create(target.Self(), hg.HashName("upper")))
	defer h.Close()
	done := request.NewClass(origin).Create(h.Cancel)
	check(h.Forward(Job{text, room}, func(_ *hg.Handle, err error) { done.Complete(err) }))
	check(done.WaitContext(ctx)) // the target's pull and push are served in the meantime
	check(text.CloseWait(ctx))   // from here on no peer can access the memory
	check(room.CloseWait(ctx))
	fmt.Fprintf(out, "%d bytes: %s ...\n", len(result), result[:29])
	fmt.Fprintln(out, "all of them right:", bytes.Equal(result, bytes.ToUpper(data)))
}

// open returns a context of a new class that serves or calls this program's only RPC.
func open(addr string, handler hg.Handler) *hg.Context {
	class := must(hg.Open(addr, hg.Config{}))
	must(class.Register("upper", handler))
	return must(class.NewContext())
}

// upper pulls the text. The callback of the pull converts the text to upper case and pushes it back. upper never
// blocks: it detaches the request, and the callbacks answer it.
func upper(h hg.Request) error {
	var job Job
	if err := h.Input(&job); err != nil {
		return err
	}
	if job.Text == nil || job.Room == nil || job.Text.Len() > maxText { // the peer chooses the size, so limit it
		return fmt.Errorf("no text, no room, or more than %d bytes", maxText)
	}
	buf := make([]byte, job.Text.Len())
	local, err := bulk.Create(h.HG(), bulk.Options{Access: bulk.LocalOnly}, buf)
	if err != nil {
		return err
	}
	answer := func(err error) {
		if err != nil {
			_ = h.RespondError(err, nil)
		} else {
			_ = h.Respond(nil, nil)
		}
		_ = local.Close()
	}
	push := func(_ *bulk.Op, err error) {
		if err == nil {
			copy(buf, bytes.ToUpper(buf))
			spec := bulk.Spec{Dir: bulk.Push, Peer: h.Peer(), Remote: job.Room, Local: local, Size: local.Len()}
			_, err = bulk.Transfer(h.HG(), spec, func(_ *bulk.Op, err error) { answer(err) })
		}
		if err != nil {
			answer(err)
		}
	}
	if err := h.Detach(); err != nil { // the request is answered after the handler has returned
		return err
	}
	spec := bulk.Spec{Dir: bulk.Pull, Peer: h.Peer(), Remote: job.Text, Local: local, Size: local.Len()}
	if _, err := bulk.Transfer(h.HG(), spec, push); err != nil {
		answer(err)
	}
	return nil
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
