// Command na uses package na directly. Packages hg and bulk are built from the operations that it shows.
//
//	go run ./examples/na                     over tcp
//	go run ./examples/na -transport udp      or sm
//
// An origin and a target are two classes of one process, and one goroutine drives both:
//
//	origin                                         target
//	RecvExpected, tag 1                            RecvUnexpected
//	SendUnexpected, tag 1: "Ada" ───────────────►  callback, which posts RecvUnexpected again
//	callback ◄──────────────────────────────────── SendExpected, tag 1: "hello, Ada"
//
//	Register, RecvExpected
//	SendUnexpected, tag 2: the key ─────────────►  callback
//	    its memory ═══════════════════════════════ Get, Put
//	callback ◄──────────────────────────────────── SendExpected, tag 2
//	Deregister
//
//	RecvExpected, tag 3
//	Cancel, Trigger: callback with ErrCanceled
//	RecvExpected with the same Op and tag
//	SendUnexpected, tag 3 ──────────────────────►  callback
//	callback ◄──────────────────────────────────── SendExpected, tag 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all" // registers the transports
)

// The tag of an unexpected message specifies the request. The target answers with an expected message that has the same
// tag.
const (
	tagGreet na.Tag = 1 + iota
	tagUpper        // the message is the key of memory, which the target changes to upper case
	tagReady
)

// anyAddress maps each transport to a listen address that selects a free port or name.
var anyAddress = map[string]string{"tcp": "tcp://127.0.0.1:0", "udp": "udp://127.0.0.1:0", "sm": "sm://example-*"}

func main() {
	transport := flag.String("transport", "tcp", "`scheme` of the addresses: tcp, udp or sm")
	flag.Parse()
	if anyAddress[*transport] == "" {
		log.Fatalf("-transport %s: use tcp, udp or sm", *transport)
	}
	run(os.Stdout, *transport)
}

func run(out io.Writer, transport string) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()

	// Open corresponds to NA_Initialize, and NewContext to NA_Context_create; in libfabric these are a domain and an
	// endpoint with its completion queue. An address with nothing after :// is for a class that does not listen.
	targetClass := must(na.Open(anyAddress[transport], na.Config{}))
	originClass := must(na.Open(transport+"://", na.Config{}))
	t := newTarget(out, must(targetClass.NewContext()))
	o := &origin{out: out, na: must(originClass.NewContext())}
	o.drive = func(ready func() bool) { drive(ctx, ready, o.na, t.na) }

	o.lookup(t.na.Self().String())
	o.greet()
	o.lendMemory()
	o.cancelReceive()

	// An answer that the origin has received may still be in progress at the target. Live returns the number of
	// operations whose callbacks have not returned. In the end only the target's receive is left, which Close cancels.
	// A closed context must be driven until its last callback has run. Class.Shutdown does all of that.
	o.drive(func() bool { return o.na.Live() == 0 && t.na.Live() == 1 })
	originClass.Close()
	targetClass.Close()
	o.drive(func() bool { return originClass.Closed() && targetClass.Closed() })
}

// drive drives contexts until ready returns true. Progress moves bytes and fills the completion queue. Trigger runs the
// callbacks of completed operations on the calling goroutine. Since no other goroutine runs them, they need no locks
// here.
//
// Progress sleeps until something is ready or its timeout has expired. A goroutine that drives one context passes -1.
// This one drives two, and must not sleep for long in one of them while the other has work to do.
func drive(ctx context.Context, ready func() bool, contexts ...*na.Context) {
	for !ready() {
		check(context.Cause(ctx))
		for _, c := range contexts {
			switch err := c.Progress(time.Millisecond); {
			case err == nil:
				c.Trigger(0) // everything that is queued now
			case errors.Is(err, os.ErrDeadlineExceeded): // no events
			case errors.Is(err, na.ErrClosed): // after Close, when the last callback has run
			default:
				log.Fatal(err)
			}
		}
	}
}

// An origin starts all exchanges and waits for them to complete.
type origin struct {
	out    io.Writer
	na     *na.Context
	drive  func(ready func() bool)
	target na.Addr
}

// wait drives both contexts until the callbacks of ops have run.
func (o *origin) wait(ops ...*na.Op) {
	o.drive(func() bool {
		for _, op := range ops {
			if op.Busy() {
				return false
			}
		}
		return true
	})
}

// lookup resolves the target's address. It does not connect; sending the first message does.
func (o *origin) lookup(text string) {
	op := o.na.NewOp(func(_ *na.Op, r na.Result) { // corresponds to na_cb_t and NA_Op_create
		check(r.Err)
		o.target = r.Addr
	})
	check(o.na.Lookup(op, text))
	o.wait(op)
	fmt.Fprintln(o.out, "origin: the target is", o.target)
}

// greet sends a message, for which the target has posted no buffer, and receives the answer.
func (o *origin) greet() {
	buf := make([]byte, o.na.Limits().MaxExpected)
	recv := o.na.NewOp(func(_ *na.Op, r na.Result) {
		check(r.Err)
		fmt.Fprintf(o.out, "origin: expected message with tag %d: %s\n", r.Tag, buf[:r.N])
	})
	// The receive is posted before the message that requests an answer, because an expected message without a receive
	// is dropped.
	check(o.na.RecvExpected(recv, o.target, tagGreet, buf))
	send := o.send(tagGreet, []byte("Ada"))
	o.wait(recv, send)
}

// send starts sending an unexpected message. The operation owns the buffer until its callback has run. A send and a
// receive that are in progress at the same time need two operations.
func (o *origin) send(tag na.Tag, message []byte) *na.Op {
	op := o.na.NewOp(func(_ *na.Op, r na.Result) { check(r.Err) })
	check(o.na.SendUnexpected(op, o.target, tag, message))
	return op
}

// lendMemory registers memory and lets the target read and write it.
func (o *origin) lendMemory() {
	data := []byte("quicksilver")
	mem := must(o.na.Class().Register(na.ReadWrite, data)) // also accepts several segments

	// The key is sent in a message, as bytes. It corresponds to NA_Mem_handle_serialize or fi_mr_key. A peer that has
	// it can access the memory.
	var done [1]byte
	recv := o.na.NewOp(func(_ *na.Op, r na.Result) { check(r.Err) })
	check(o.na.RecvExpected(recv, o.target, tagUpper, done[:]))
	send := o.send(tagUpper, mem.Key().Append(nil))
	o.wait(recv, send)

	// Once the callback of Deregister runs, no peer can access the memory anymore, whatever the peer does.
	dereg := o.na.NewOp(func(_ *na.Op, r na.Result) { check(r.Err) })
	check(o.na.Deregister(dereg, mem))
	o.wait(dereg)
	fmt.Fprintf(o.out, "origin: the memory is %s, and registered regions: %d\n", data, o.na.Class().Regions())
}

// cancelReceive cancels a receive for which no message arrives, and posts it again.
func (o *origin) cancelReceive() {
	buf := make([]byte, 16)
	var ended na.Result
	recv := o.na.NewOp(func(_ *na.Op, r na.Result) { ended = r })
	check(o.na.RecvExpected(recv, o.target, tagReady, buf))

	recv.Cancel()        // like NA_Cancel or fi_cancel: the target is not notified, and the connection stays open
	n := o.na.Trigger(0) // does not require a call to Progress first
	fmt.Fprintf(o.out, "origin: callbacks run: %d, canceled: %t, busy: %t\n", n, errors.Is(ended.Err, na.ErrCanceled), recv.Busy())

	// No transport writes to buf now. The operation is idle and may be started again, for the same tag.
	check(o.na.RecvExpected(recv, o.target, tagReady, buf))
	send := o.send(tagReady, nil)
	o.wait(recv, send)
	check(ended.Err)
	fmt.Fprintf(o.out, "origin: the same operation has received: %s\n", buf[:ended.N])
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
