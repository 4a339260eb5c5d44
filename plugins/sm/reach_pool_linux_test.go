package sm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func init() {
	roles["reader"] = func() error { return serve(pull) }
	roles["lender"] = func() error { return serve(lend) }
	roles["vandal lender"] = func() error { return serve(lend) } // it scribbles when it has lent
}

func serve(handler hg.Handler) error {
	hctx, err := openChild("sm://*", handler)
	for err == nil {
		hctx.Trigger(0)
		if na.CodeOf(hctx.Progress(-1)) == na.ErrClosed {
			return nil
		}
	}
	return err
}

const (
	lentSize = 8 << 20
	lentByte = 7
	poison   = 0xdb
)

var (
	pulled = make([]byte, lentSize)
	lent   []byte
)

// pull pulls memory of the caller, or views it, by the first byte, and returns its contents.
func pull(in hg.Request) error {
	b, err := in.InputRaw()
	if err != nil {
		return err
	}
	h := &bulk.Handle{}
	if err := h.UnmarshalBinary(b[1:]); err != nil {
		return err
	}
	what := pulled
	if b[0] == 'v' {
		var v *bulk.View
		v, err = bulk.NewView(context.Background(), in.HG(), bulk.Stream{Peer: in.Peer(), Handle: h})
		if err == nil {
			what = append(pulled[:0], v.Bytes()...)
			err = v.Close()
		}
	} else {
		clear(pulled)
		var local *bulk.Handle
		if local, err = bulk.Create(in.HG(), bulk.Options{}, pulled); err != nil {
			return err
		}
		err = bulk.Do(context.Background(), in.HG(), bulk.Spec{Peer: in.Peer(), Remote: h, Local: local, Size: lentSize})
		_ = local.Close()
	}
	answer := "right"
	switch {
	case errors.Is(err, na.ErrRevoked):
		answer = "revoked"
	case err != nil:
		answer = err.Error()
	case bytes.Count(what, []byte{lentByte}) != lentSize:
		answer = "wrong"
	}
	return in.RespondRaw([]byte(answer), nil)
}

// lend lends memory for ever.
func lend(in hg.Request) (err error) {
	if lent == nil {
		if lent, err = bulk.Alloc(lentSize); err != nil {
			return err
		}
		for i := range lent {
			lent[i] = lentByte
		}
	}
	h, err := bulk.Create(in.HG(), bulk.Options{Access: bulk.ReadOnly}, lent)
	if err != nil {
		return err
	}
	b, err := h.MarshalBinary()
	if err != nil {
		return err
	}
	if in, _ := in.InputRaw(); len(in) > 0 {
		go writeRandomly()
	}
	return in.RespondRaw(b, nil)
}

// call calls the child, and returns how that ends.
func (f *exitTest) call(p *process, in []byte) *answer {
	h, err := f.hctx.Create(p.addr, hg.HashName("echo"))
	require.NoError(f.t, err)
	a := &answer{}
	require.NoError(f.t, h.ForwardRaw(in, func(h *hg.Handle, err error) {
		a.over, a.err = true, err
		if err == nil {
			out, _ := h.OutputRaw()
			a.out = bytes.Clone(out)
		}
		_ = h.Close()
	}))
	return a
}

type answer struct {
	over bool
	out  []byte
	err  error
}

// TestPoison checks that bytes read after a Close has completed are never taken for lent ones, in
// any state of the reader; and that the Close waits for no reader.
func TestPoison(t *testing.T) {
	f := newExitTest(t)
	mem, err := bulk.Alloc(lentSize)
	require.NoError(t, err)
	defer func() { bulk.Free(mem); pool.ReleaseUnused() }()
	f.maps, f.fds = countMappings(t)
	p := f.reader()
	seen := map[string]int{}
	for round := 0; round < long.Or(60, 2000) || seen["right"] == 0 || seen["revoked"] == 0; round++ {
		require.Less(t, round, 5000, "%v", seen)
		what := []string{"run", "stop", "kill"}[round%3]
		for i := range mem {
			mem[i] = lentByte
		}
		h, err := bulk.Create(f.hctx, bulk.Options{Access: bulk.ReadOnly}, mem)
		require.NoError(t, err)
		b, err := h.MarshalBinary()
		require.NoError(t, err)
		a := f.call(p, append([]byte{"pv"[rand.IntN(2)]}, b...))
		for end := time.Now().Add(time.Duration(rand.IntN(1500)) * time.Microsecond); time.Now().Before(end); {
			_ = f.hctx.Progress(0)
		}
		switch what {
		case "stop":
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		case "kill":
			p.kill()
		}
		closed := false
		require.NoError(t, h.CloseFunc(func(error) { closed = true }))
		for range 5 {
			f.hctx.NA().Trigger(0)
			f.hctx.Trigger(0)
		}
		require.True(t, closed, "it is not delayed")
		for i := range mem {
			mem[i] = poison
		}
		if what == "stop" {
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
		}
		f.until("the call ends", func() bool { return a.over })
		if a.err != nil {
			require.Equal(t, "kill", what)
			require.ErrorIs(t, a.err, hg.ErrPeerLost)
		} else {
			require.Contains(t, []string{"right", "revoked"}, string(a.out), what)
			seen[string(a.out)]++
		}
		if what == "kill" {
			f.requireReleased(p, nil)
			p = f.reader()
		}
	}
	t.Log(seen)
	p.kill()
	f.requireReleased(p, nil)
}

// reader starts a child that reads, and that has mapped the memory that this process lends.
func (f *exitTest) reader() *process {
	p := f.start("reader")
	mem, err := bulk.Alloc(lentSize)
	require.NoError(f.t, err)
	for i := range mem {
		mem[i] = lentByte
	}
	h, err := bulk.Create(f.hctx, bulk.Options{Access: bulk.ReadOnly}, mem)
	require.NoError(f.t, err)
	b, err := h.MarshalBinary()
	require.NoError(f.t, err)
	a := f.call(p, append([]byte{'p'}, b...))
	f.until("the first pull ends", func() bool { return a.over })
	require.NoError(f.t, a.err)
	require.Equal(f.t, "right", string(a.out))
	require.NoError(f.t, h.CloseWait(context.Background()))
	bulk.Free(mem)
	return p
}

// TestLenderStoppedAndKilled checks that memory of a stopped owner is read all the same; a kill in
// the middle of a read ends the read at most; and nothing is left of the owner.
func TestLenderStoppedAndKilled(t *testing.T) {
	f := newExitTest(t)
	for round := range long.Or(10, 300) {
		p := f.start("lender")
		a := f.call(p, nil)
		f.until("it lends", func() bool { return a.over })
		require.NoError(t, a.err)
		h := &bulk.Handle{}
		require.NoError(t, h.UnmarshalBinary(a.out))
		into := make([]byte, lentSize)
		local, err := bulk.Create(f.hctx, bulk.Options{}, into)
		require.NoError(t, err)
		over, failed := false, error(nil)
		get := func() {
			over = false
			clear(into)
			_, err := bulk.Transfer(f.hctx, bulk.Spec{Peer: p.addr, Remote: h, Local: local, Size: lentSize}, func(_ *bulk.Op, err error) { over, failed = true, err })
			require.NoError(t, err)
		}
		right := func() {
			f.until("the pull ends", func() bool { return over })
			require.NoError(t, failed)
			require.Equal(t, lentSize, bytes.Count(into, []byte{lentByte}))
		}
		get()
		right()
		f.until("it is mapped", func() bool {
			v, err := bulk.NewView(context.Background(), f.hctx, bulk.Stream{Peer: p.addr, Handle: h, Size: 1})
			require.NoError(t, err)
			require.NoError(t, v.Close())
			return v.Shared()
		})
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		get()
		right()
		get()
		for range round {
			_ = f.hctx.Progress(0)
			f.hctx.Trigger(0)
		}
		p.kill()
		if f.until("the pull ends", func() bool { return over }); failed != nil {
			require.ErrorIs(t, failed, hg.ErrPeerLost)
		} else {
			right()
		}
		require.NoError(t, local.CloseWait(context.Background()))
		f.requireReleased(p, nil)
	}
}

// TestLenderWritesAnything checks that a lender that writes anything into its lent memory, and into the rest
// that it shares, affects only itself.
func TestLenderWritesAnything(t *testing.T) {
	f := newExitTest(t)
	for range 5 {
		p := f.start("vandal lender")
		a := f.call(p, nil)
		f.until("it lends", func() bool { return a.over })
		require.NoError(t, a.err)
		h := &bulk.Handle{}
		require.NoError(t, h.UnmarshalBinary(a.out))
		into := make([]byte, lentSize)
		ends := map[string]int{}
		pull := func() {
			local, err := bulk.Create(f.hctx, bulk.Options{}, into)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			err = bulk.Do(ctx, f.hctx, bulk.Spec{Peer: p.addr, Remote: h, Local: local, Size: lentSize})
			cancel()
			require.NoError(t, local.CloseWait(context.Background()))
			ends[fmt.Sprint(na.CodeOf(err))]++
		}
		pull() // has it mapped
		_ = f.call(p, []byte("scribble"))
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
			pull()
		}
		t.Log(ends)
		p.kill()
		f.until("it is dead", p.hasExited)
		f.requireReleased(p, nil)
	}
}
