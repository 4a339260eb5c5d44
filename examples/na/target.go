package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A target never waits: the callback of each operation starts the next one.
type target struct {
	out  io.Writer
	na   *na.Context
	recv *na.Op
}

func newTarget(out io.Writer, c *na.Context) *target {
	t := &target{out: out, na: c}
	t.recv = c.NewOp(t.onMessage)
	check(c.RecvUnexpected(t.recv))
	fmt.Fprintln(out, "target: listens at", c.Self())
	return t
}

// onMessage is the callback of the receive. It needs no buffer, because the message arrives in an envelope, one of
// those that Config.Envelopes guarantees to each peer. While no receive is posted, messages wait and are not dropped.
func (t *target) onMessage(recv *na.Op, r na.Result) {
	if errors.Is(r.Err, na.ErrClosed) {
		fmt.Fprintln(t.out, "target: the receive has ended:", r.Err)
		return
	}
	check(r.Err)
	msg := r.Envelope
	defer msg.Free()                 // the callback owns the envelope; Free returns it to the sender
	check(t.na.RecvUnexpected(recv)) // for the next message; an operation is idle when its callback runs

	// The answer is sent to msg.From, which identifies the session on which the message arrived. It therefore reaches
	// even origins that do not listen.
	switch msg.Tag {
	case tagGreet:
		fmt.Fprintf(t.out, "target: unexpected message with tag %d: %s\n", msg.Tag, msg.Data)
		t.answer(msg.From, tagGreet, "hello, "+string(msg.Data))
	case tagUpper:
		t.upper(msg.From, must(na.DecodeKey(msg.Data)))
	case tagReady:
		t.answer(msg.From, tagReady, "ready")
	}
}

// upper reads the memory of key, changes it, writes it back, and then answers.
func (t *target) upper(from na.Addr, key na.Key) {
	data := make([]byte, key.Len)
	local := must(t.na.Class().NewMem(data)) // local side of Get and Put; peers cannot access it

	put := t.na.NewOp(func(_ *na.Op, r na.Result) {
		check(r.Err)
		fmt.Fprintf(t.out, "target: put %s\n", data)
		t.answer(from, tagUpper, "")
	})
	get := t.na.NewOp(func(_ *na.Op, r na.Result) {
		check(r.Err)
		fmt.Fprintf(t.out, "target: got %s\n", data)
		copy(data, bytes.ToUpper(data))
		check(t.na.Put(put, local, 0, from, key, 0, key.Len))
	})
	check(t.na.Get(get, local, 0, from, key, 0, key.Len))
}

func (t *target) answer(to na.Addr, tag na.Tag, text string) {
	op := t.na.NewOp(func(_ *na.Op, r na.Result) { check(r.Err) })
	check(t.na.SendExpected(op, to, tag, []byte(text)))
}
