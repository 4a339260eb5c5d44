//go:build unix

package proctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	lentSize   = 9<<20 + 77 // goes around a ring of 4 MiB
	lentPiece  = 128 << 10  // of a transfer
	poisonByte = 0xdb
)

type (
	lentSource struct {
		Point int
		Body  qs.Source
	}
	lentSink struct {
		Point int
		Body  qs.Sink
	}
)

var (
	lentPut = qs.Define[lentSource, int]("lent/put")
	lentGet = qs.Define[lentSink, int]("lent/get")
)

func init() { roles["borrower"] = runBorrower }

// runBorrower is a target that uses the memory that callers lend. It prints "point" after Point
// bytes, and "over" when a handler has ended, after it has tried to continue without permission;
// with "poison" if it has read that.
func runBorrower() error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	n, err := qs.Open(os.Getenv(listenEnv), qs.Config{ShutdownTimeout: -1})
	if err != nil {
		return err
	}
	want := make([]byte, lentSize)
	fillPattern(want)
	piece := make([]byte, lentPiece)
	over := func(at int, poisoned bool, err error) {
		printed := fmt.Sprintf("over: %d bytes, %v", at, err)
		if poisoned {
			printed = "over: poison, " + printed
		}
		fmt.Println(strings.ReplaceAll(printed, "\n", " "))
	}
	pass := func(at, n, point int) {
		if at < point && point <= at+n {
			fmt.Println("point")
		}
	}
	lentPut.Handle(n, func(ctx context.Context, in lentSource) (at int, err error) {
		r, poisoned := in.Body.Reader(ctx), false
		for err == nil {
			var k int
			k, err = r.Read(piece)
			poisoned = poisoned || !bytes.Equal(piece[:k], want[at:at+k])
			pass(at, k, in.Point)
			at += k
		}
		if err == io.EOF {
			over(at, poisoned, nil)
			return at, nil
		}
		if k, _ := in.Body.ReadAt(piece, int64(at)); k > 0 {
			poisoned = poisoned || !bytes.Equal(piece[:k], want[at:at+k])
		}
		over(at, poisoned, err)
		return at, err
	})
	lentGet.Handle(n, func(ctx context.Context, in lentSink) (at int, err error) {
		w := in.Body.Writer(ctx)
		for err == nil && at < lentSize {
			var k int
			k, err = w.Write(want[at:min(at+lentPiece, lentSize)])
			pass(at, k, in.Point)
			at += k
		}
		if err != nil {
			_, _ = in.Body.WriteAt(want[:1000], 0)
		}
		over(at, false, err)
		return at, err
	})
	fmt.Println(n.Addr())
	return n.Serve(ctx)
}

// TestLentMemory checks that after a Call has returned the memory that it has lent is neither read
// nor written. It is canceled in mid-transfer, while the target runs, is stopped or has been
// killed; then the lent memory is poisoned, and the target continues: it must never read poison,
// and the poison must stay.
func TestLentMemory(t *testing.T) {
	t.Parallel()
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			node, err := qs.Open(tr.origin, qs.Config{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, node.Close()) })
			for _, kind := range []string{"Bytes", "Reader", "Buffer", "Writer"} {
				p := startRole(t, "borrower", listenEnv+"="+tr.listenAddr())
				for _, state := range []string{"running", "stopped", "killed"} { // in this order: the target is the same
					t.Run(kind+"/"+state, func(t *testing.T) {
						points := long.Or(1, 24)
						if state == "killed" {
							points = 1
						}
						for i := range points {
							lendAt(t, node, p, kind, state, 1+(lentSize-2)*(2*i+1)/(2*points))
						}
					})
				}
			}
		})
	}
}

// lendAt makes a call that lends, and cancels it when the target is at a point.
func lendAt(t *testing.T, node *qs.Node, p *process, kind, state string, point int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	to, err := node.Peer(ctx, p.Addr)
	require.NoError(t, err)
	mem, want := make([]byte, lentSize), make([]byte, lentSize)
	fillPattern(want)
	copy(mem, want)
	var returned atomic.Bool
	through := 0
	begun := make(chan time.Time, 1)
	go func() { // reads the lines of the target; the test waits for it
		defer cancel()
		line, _ := p.out.ReadString('\n')
		if strings.TrimSpace(line) == "point" {
			switch state {
			case "stopped":
				_ = p.cmd.Process.Signal(syscall.SIGSTOP)
			case "killed":
				_ = p.cmd.Process.Kill()
			}
		} else {
			t.Errorf("the target prints %q before its point", line)
		}
		begun <- time.Now()
	}()
	switch kind {
	case "Bytes":
		_, err = lentPut.Call(ctx, to, lentSource{point, qs.Bytes(mem[:1000], mem[1000:])})
	case "Buffer":
		_, err = lentGet.Call(ctx, to, lentSink{point, qs.Buffer(mem[:1000], mem[1000:])})
	case "Reader":
		_, err = lentPut.Call(ctx, to, lentSource{point, qs.Reader(readFunc(func(b []byte) (int, error) {
			if returned.Load() {
				t.Error("the reader is read after the call")
			}
			k := copy(b, want[through:])
			through += k
			if k == 0 {
				return 0, io.EOF
			}
			return k, nil
		}))})
	case "Writer":
		_, err = lentGet.Call(ctx, to, lentSink{point, qs.Writer(writeFunc(func(b []byte) (int, error) {
			if returned.Load() {
				t.Error("the writer is written to after the call")
			}
			if !bytes.Equal(b, want[through:through+len(b)]) {
				t.Errorf("%d wrong bytes at %d", len(b), through)
			}
			through += len(b)
			return len(b), nil
		}))})
	}
	returned.Store(true)
	for i := range mem {
		mem[i] = poisonByte
	}
	took := time.Since(<-begun)
	t.Logf("the call has returned %v after the cancel: %v", took, err)
	if err != nil {
		require.True(t, errors.Is(err, qs.ErrCanceled) || errors.Is(err, qs.ErrPeerLost) ||
			errors.Is(err, hg.ErrRemote), "%v", err)
	}
	if state == "stopped" {
		p.waitStopped()
		p.signal(syscall.SIGCONT)
	}
	if state == "killed" {
		_ = p.cmd.Wait()
	} else {
		printed := p.readLine()
		require.Contains(t, printed, "over: ")
		require.NotContains(t, printed, "poison")
	}
	for i, b := range mem {
		if b != poisonByte {
			t.Fatalf("byte %d of what was lent has changed after the call", i)
		}
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }
