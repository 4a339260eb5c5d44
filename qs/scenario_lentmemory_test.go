package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestLentMemory checks that with whatever a call ends, the memory that it has lent is not read or
// written any more when it has returned. A call is canceled after each number of events, while the
// target runs, is paused, or crashes. Then the lent memory is poisoned, and the world continues:
// the target must never see poison, and the poison must stay.
func TestLentMemory(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Bytes", "Reader", "Buffer", "Writer"} {
		for _, peer := range []string{"runs", "paused", "crashed"} {
			t.Run(kind+"/"+peer, func(t *testing.T) {
				t.Parallel()
				last := 0
				for steps := 0; ; steps++ {
					switch {
					case long.On:
					case raceflag.Enabled && (kind == "Reader" || kind == "Writer"): // many events, and little to find: one coroutine runs at a time
						steps += 30
					default:
						steps += 23
					}
					if lendOnce(t, kind, peer, steps) {
						break
					}
					last = steps
				}
				require.Greater(t, last, 10, "the call has ended before it could be canceled anywhere")
			})
		}
	}
}

// lendOnce cancels a call after some events, and reports whether it had ended before.
func lendOnce(t *testing.T, kind, peer string, steps int) (ended bool) {
	size := 4<<20 + 500_077 // is written around a ring
	if kind == "Bytes" || kind == "Buffer" {
		size = 1<<20 + 77
	}
	seed := uint64(steps)
	w := sim.NewWorld(sim.Config{Seed: seed, Level: sim.Level(seed & 1), Latency: 50 * time.Microsecond, Window: 64 << 10})
	defer w.Close()
	where := func() string { return fmt.Sprintf("%s, target %s, after %d events", kind, peer, steps) }
	want := randomBytes(9, 1<<20)
	serving, stop := context.WithCancel(context.Background())
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{PeerTimeout: time.Second})
		put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
			r := in.Body.Reader(ctx)
			b := make([]byte, 300_000)
			for at := 0; ; {
				k, err := r.Read(b)
				for i := range k {
					if b[i] != want[(at+i)%len(want)] {
						t.Errorf("%s: the target reads %#x at %d", where(), b[i], at+i)
						return nil, errors.New("poison")
					}
				}
				at += k
				if err == io.EOF {
					return nil, nil
				}
				if err != nil { // the caller has given up: is there more to be had, without its leave?
					k, _ = in.Body.ReadAt(b, int64(at))
					if k > 0 && bytes.Contains(b[:k], poison[:64]) {
						t.Errorf("%s: the target reads poison", where())
					}
					return nil, err
				}
			}
		})
		get.Handle(n, func(ctx context.Context, in getIn) (int, error) {
			out := in.Body.Writer(ctx)
			for n := 0; n < size; {
				k, err := out.Write(want[:min(len(want), size-n)])
				if n += k; err != nil {
					_, _ = in.Body.WriteAt(want[:1000], 0)
					return n, err
				}
			}
			return size, nil
		})
		_ = n.Serve(serving)
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{PeerTimeout: time.Second})
		defer n.Close()
		to, err := n.Peer(context.Background(), "sim://server")
		require.NoError(t, err)
		_, err = to.Ping(context.Background()) // there is a session
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		over := false
		w.AfterEvents(steps, func() {
			if over {
				return
			}
			switch peer {
			case "paused":
				w.Node("server").Pause(10 * time.Second)
			case "crashed":
				w.Node("server").Crash()
			}
			cancel()
		})
		mem := make([]byte, size)
		var through int
		switch kind {
		case "Bytes":
			for at := 0; at < size; {
				at += copy(mem[at:], want)
			}
			_, err = put.Call(ctx, to, putIn{"", qs.Bytes(mem[:1000], mem[1000:])})
		case "Buffer":
			_, err = get.Call(ctx, to, getIn{"", 0, qs.Buffer(mem[:1000], mem[1000:])})
		case "Reader":
			_, err = put.Call(ctx, to, putIn{"", qs.Reader(readerFunc(func(b []byte) (int, error) {
				if w.Sleep(100 * time.Microsecond); over {
					t.Errorf("%s: the reader is read after the call", where())
				}
				if through == size {
					return 0, io.EOF
				}
				at := through % len(want)
				k := copy(b, want[at:min(len(want), at+size-through)])
				through += k
				return k, nil
			}))})
		case "Writer":
			_, err = get.Call(ctx, to, getIn{"", 0, qs.Writer(writerFunc(func(b []byte) (int, error) {
				if w.Sleep(100 * time.Microsecond); over {
					t.Errorf("%s: the writer is written to after the call", where())
				}
				for i, v := range b {
					if v != want[(through+i)%len(want)] {
						t.Errorf("%s: byte %d is written as %#x", where(), through+i, v)
						break
					}
				}
				through += len(b)
				return len(b), nil
			}))})
		}
		over = true
		ended = err == nil
		if !ended {
			require.True(t, errors.Is(err, qs.ErrCanceled) || errors.Is(err, qs.ErrPeerLost) || errors.Is(err, hg.ErrRemote), "%s: %v", where(), err)
		}
		for at := 0; at < size; {
			at += copy(mem[at:], poison)
		}
		_ = n.Sleep(context.Background(), 20*time.Second) // the target continues, if it can
		for at := 0; at < size; at += len(poison) {
			require.True(t, bytes.Equal(mem[at:min(size, at+len(poison))], poison[:min(size-at, len(poison))]), "%s: memory changed after the call", where())
		}
	})
	require.NoError(t, w.Run(time.Hour), where())
	return ended
}

var poison = bytes.Repeat([]byte{0xdb}, 1<<20)
