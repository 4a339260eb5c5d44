package mercury_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

const echoID = 77

// serveEcho serves echoID inline and echoID+1 not.
func serveEcho(n *mercury.Node) {
	f := func(r *mercury.Request) { _ = r.Respond(r.Input()) }
	n.HandleInline(echoID, f)
	n.Handle(echoID+1000, f)
}

// TestCall checks that input and output of every size arrive, in messages or separately, with
// either header, from another process or the own one.
func TestCall(t *testing.T) {
	for _, sums := range []mercury.Checksums{mercury.Off, mercury.On, mercury.Auto} {
		target, origin := open(t, mercury.Config{}), open(t, mercury.Config{Checksums: sums})
		serveEcho(target)
		serveEcho(origin)
		for _, size := range []int{0, 1, 64, 4000, 4060, 4064, 4065, 4080, 4081, 8192, 1 << 20, 3<<20 + 1} {
			for _, to := range []string{target.Addr(), origin.Addr()} {
				in := fill(size)
				for _, id := range []uint64{echoID, echoID + 1000} {
					out, err := origin.Call(testContext(t), to, id, in)
					require.NoError(t, err)
					require.True(t, bytes.Equal(in, out), "%d bytes", size)
				}
			}
		}
	}
}

// TestLongBothWays checks input and output that are sent separately in both directions of one
// connection, lent and acknowledged by calls and notifications of each side at a time.
func TestLongBothWays(t *testing.T) {
	long := fill(1 << 20)
	for range 8 {
		a, b := open(t, mercury.Config{Checksums: mercury.Off}), open(t, mercury.Config{Checksums: mercury.Off})
		for _, n := range []*mercury.Node{a, b} {
			n.Handle(1, func(r *mercury.Request) { _ = r.Respond(long) })
			n.Handle(2, func(*mercury.Request) {})
		}
		_, err := a.Call(testContext(t), b.Addr(), 1, nil)
		require.NoError(t, err)
		_, err = b.Call(testContext(t), a.Addr(), 1, nil)
		require.NoError(t, err)
		var wg sync.WaitGroup
		errs := make(chan error, 32)
		for range 4 {
			for _, p := range [][2]*mercury.Node{{a, b}, {b, a}} {
				wg.Go(func() {
					out, err := p[0].Call(testContext(t), p[1].Addr(), 1, nil)
					if err == nil && !bytes.Equal(out, long) {
						err = fmt.Errorf("other output, of %d bytes", len(out))
					}
					errs <- err
				})
				wg.Go(func() { errs <- p[0].Notify(testContext(t), p[1].Addr(), 2, long) })
			}
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// TestCallsBothWays has many goroutines call in both directions over one connection.
func TestCallsBothWays(t *testing.T) {
	a, b := open(t, mercury.Config{}), open(t, mercury.Config{})
	serveEcho(a)
	serveEcho(b)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 32 {
		from, to := a, b
		if i%2 == 0 {
			from, to = b, a
		}
		wg.Go(func() {
			for j := range 50 {
				in := fill(j * 331)
				out, err := from.Call(testContext(t), to.Addr(), echoID+uint64(i%4/2)*1000, in)
				if err != nil || !bytes.Equal(in, out) {
					errs <- fmt.Errorf("call %d: %d bytes of %d: %w", j, len(out), len(in), err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	require.Len(t, a.Peers(), 1)
	require.Equal(t, []string{a.Addr()}, b.Peers())
}

// TestErrors checks that the origin gets the outcome of the handler: refused, failed, answered
// late, or not at all.
func TestErrors(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{Checksums: mercury.Off})
	never := make(chan struct{})
	for id, f := range map[uint64]func(*mercury.Request){
		1: func(r *mercury.Request) { panic("on purpose") },
		2: func(*mercury.Request) {},
		3: func(r *mercury.Request) { _ = r.RespondError(mercury.ErrPermission) },
		4: func(r *mercury.Request) {
			r.Detach()
			go func() { _ = r.Respond([]byte("late")) }()
		},
		5: func(r *mercury.Request) {
			r.Detach()
			never <- struct{}{}
		},
		6: func(r *mercury.Request) { // a handler cannot respond with a refusal
			_ = r.RespondError(mercury.ErrNoMethod)
			if err := r.Respond(nil); !errors.Is(err, mercury.ErrAnswered) {
				panic(err)
			}
		},
	} {
		target.Handle(id, f)
		target.HandleInline(id+100, f)
	}
	for _, inline := range []uint64{0, 100} {
		for id, want := range map[uint64]mercury.Code{1: 26, 2: 26, 3: mercury.ErrPermission, 6: 26} {
			_, err := origin.Call(testContext(t), target.Addr(), id+inline, nil)
			require.ErrorIs(t, err, mercury.ErrRemote)
			require.NotErrorIs(t, err, mercury.ErrRefused)
			require.Equal(t, want, mercury.CodeOf(err))
			require.Equal(t, mercury.Ran, mercury.FateOf(err))
		}
		out, err := origin.Call(testContext(t), target.Addr(), 4+inline, nil)
		require.NoError(t, err)
		require.Equal(t, "late", string(out))

		ctx, cancel := context.WithCancelCause(testContext(t))
		why := errors.New("no longer wanted")
		go func() {
			<-never
			cancel(why)
		}()
		_, err = origin.Call(ctx, target.Addr(), 5+inline, nil)
		require.ErrorIs(t, err, mercury.ErrCanceled)
		require.ErrorIs(t, err, why)
		require.Equal(t, mercury.MaybeRan, mercury.FateOf(err))
	}
	_, err := origin.Call(testContext(t), target.Addr(), 9, nil)
	require.ErrorIs(t, err, mercury.ErrRefused)
	require.ErrorIs(t, err, mercury.ErrNoMethod)
	require.Equal(t, mercury.NotRun, mercury.FateOf(err))

	gone := open(t, mercury.Config{})
	require.NoError(t, gone.Close())
	_, err = origin.Call(testContext(t), gone.Addr(), 9, nil)
	require.ErrorIs(t, err, mercury.ErrUnreachable)
	require.Equal(t, mercury.NotRun, mercury.FateOf(err))
	_, err = gone.Call(testContext(t), target.Addr(), 9, nil)
	require.ErrorIs(t, err, mercury.ErrClosed)
	for _, addr := range []string{"tcp://127.0.0.1:1", "ofi+tcp://", "ofi+tcp://[::1]:1", "ofi+tcp://name:1"} {
		_, err = origin.Call(testContext(t), addr, 9, nil)
		require.ErrorIs(t, err, mercury.ErrInvalid)
	}
	_, err = mercury.Open("ofi+tcp://0.0.0.0:0", mercury.Config{})
	require.ErrorContains(t, err, "AnyInterface")
	any, err := mercury.Open("ofi+tcp://0.0.0.0:0", mercury.Config{AnyInterface: true})
	require.NoError(t, err)
	require.NoError(t, any.Close())
}

// TestNoResponse checks that a target that does not answer costs the time of the context, or of the
// configuration, and the error names possible causes.
func TestNoResponse(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{Checksums: mercury.Off, Timeout: 20 * time.Millisecond})
	target.Handle(1, func(r *mercury.Request) { r.Detach() })
	_, err := origin.Call(context.Background(), target.Addr(), 1, nil)
	require.ErrorIs(t, err, mercury.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the target hangs, or a C target could not decode the request")
	require.Equal(t, mercury.MaybeRan, mercury.FateOf(err))

	addr, accept, _ := listen(t)
	errs := make(chan error)
	b, _, err := mercury.ParseBulk(lentHandle(10, 1, hgwire.Readable|hgwire.Writable))
	require.NoError(t, err)
	go func() {
		_, err := origin.Remote(addr, b).ReadAt(make([]byte, 10), 0)
		errs <- err
		_, err = origin.Remote(addr, b).WriteAt(make([]byte, 10), 0)
		errs <- err
	}()
	d, s := accept()
	d.accept(s)
	require.ErrorIs(t, <-errs, mercury.ErrTimeout)
	require.ErrorIs(t, <-errs, mercury.ErrTimeout)
}

// TestNotify checks that a notification arrives and is not answered; a long one has been read when
// Notify returns.
func TestNotify(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	got := make(chan int, 2)
	target.Handle(1, func(r *mercury.Request) {
		_ = r.Respond([]byte("nobody wants it"))
		got <- len(r.Input())
	})
	for _, size := range []int{10, 1 << 20} {
		in := fill(size)
		require.NoError(t, origin.Notify(testContext(t), target.Addr(), 1, in))
		clear(in)
		require.Equal(t, size, <-got)
	}
}

// TestLend checks that a target reads and writes memory that an origin lends, at any offset, and
// not after Close.
func TestLend(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	var later *mercury.Remote
	target.Handle(1, func(r *mercury.Request) {
		b, rest, err := mercury.ParseBulk(r.Input())
		if err != nil || len(rest) != 8 {
			return
		}
		off := int64(binary.LittleEndian.Uint64(rest))
		m := r.Remote(b)
		later = m
		buf := make([]byte, m.Len()-off)
		if n, err := m.ReadAt(buf, off); err != nil || n != len(buf) {
			return
		}
		for i := range buf {
			buf[i]++
		}
		if n, err := m.WriteAt(buf, off); err != nil || n != len(buf) {
			return
		}
		_ = r.Respond(nil)
	})
	for _, size := range []int{1, 5000, 256 << 10, 5<<20 + 3} {
		mem := fill(size)
		want := fill(size)
		off := size / 3
		for i := range want[off:] {
			want[off+i]++
		}
		region, err := origin.Lend(mem, mercury.Read|mercury.Write, target.Addr())
		require.NoError(t, err)
		in, err := region.Bulk().AppendProc(nil)
		require.NoError(t, err)
		_, err = origin.Call(testContext(t), target.Addr(), 1, binary.LittleEndian.AppendUint64(in, uint64(off)))
		require.NoError(t, err)
		require.NoError(t, region.Close())
		require.True(t, bytes.Equal(want, mem))
	}
	n, err := later.ReadAt(make([]byte, 10), later.Len()-4)
	require.ErrorIs(t, err, mercury.ErrPeerLost) // the key is good no more, which costs the connection
	require.Zero(t, n)
	_, err = later.ReadAt(make([]byte, 10), later.Len()+1)
	require.Equal(t, io.EOF, err, "behind the end, as of a bytes.Reader")
	_, err = later.ReadAt(make([]byte, 10), -1)
	require.ErrorIs(t, err, mercury.ErrInvalid)

	_, err = later.Get(testContext(t), make([]byte, 10), later.Len()-4)
	require.ErrorIs(t, err, mercury.ErrInvalid)
	_, err = origin.Lend(nil, mercury.Read)
	require.ErrorIs(t, err, mercury.ErrInvalid)
}

// TestLendSegments checks that pieces of memory are lent as one, and taken back together.
func TestLendSegments(t *testing.T) {
	owner, user := open(t, mercury.Config{}), open(t, mercury.Config{})
	want, bufs := fill(200_000), [][]byte{}
	for at, size := 0, 0; at < len(want); at += size { // 0, 0, 1, 2 … bytes
		size = min(len(bufs)*len(bufs), len(want)-at)
		bufs = append(bufs, bytes.Clone(want[at:at+size]))
	}
	region, err := owner.LendSegments(bufs, mercury.Read|mercury.Write, user.Addr())
	require.NoError(t, err)
	require.EqualValues(t, len(want), region.Bulk().Len())
	m := user.Remote(owner.Addr(), region.Bulk())
	for _, off := range []int64{0, 1, 777, 199_999} {
		got := make([]byte, m.Len()-off)
		n, err := m.Get(testContext(t), got, off)
		require.NoError(t, err)
		require.Equal(t, len(got), n)
		require.True(t, bytes.Equal(want[off:], got))
	}
	copy(want[500:], bytes.Repeat([]byte{9}, 50_000))
	_, err = m.Put(testContext(t), want[500:50_500], 500)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, bytes.Join(bufs, nil)))
	require.NoError(t, region.Close())
	require.Zero(t, owner.Regions())
	_, err = m.Get(testContext(t), make([]byte, 1), 100_000)
	require.ErrorIs(t, err, mercury.ErrPeerLost)
	for _, none := range [][][]byte{nil, {nil, {}}} {
		_, err = owner.LendSegments(none, mercury.Read)
		require.ErrorIs(t, err, mercury.ErrInvalid)
	}
}

// TestEagerBulk checks that a handle of memory that peers may only read has a copy of it inside if
// that is small: the receiver needs nothing more of its owner.
func TestEagerBulk(t *testing.T) {
	owner, user := open(t, mercury.Config{}), open(t, mercury.Config{})
	read := mercury.Define[mercury.Bulk, []byte]("read")
	read.Handle(user, func(ctx context.Context, in mercury.Bulk) ([]byte, error) {
		buf := make([]byte, in.Len())
		_, err := mercury.RequestOf(ctx).Remote(in).Get(ctx, buf, 0)
		return buf, err
	})
	bufs := [][]byte{[]byte("first"), nil, []byte("second")}
	region, err := owner.LendSegments(bufs, mercury.Read)
	require.NoError(t, err)
	handle := region.EagerBulk()
	copy(bufs[0], "later")
	got, err := read.Call(testContext(t), owner, user.Addr(), handle)
	require.NoError(t, err)
	require.Equal(t, "firstsecond", string(got), "as it was")
	require.NoError(t, region.Close())
	got, err = read.Call(testContext(t), owner, user.Addr(), handle)
	require.NoError(t, err)
	require.Equal(t, "firstsecond", string(got), "also after Close")
	_, err = owner.Remote(user.Addr(), handle).Get(testContext(t), make([]byte, 5), 7)
	require.ErrorIs(t, err, mercury.ErrInvalid)
	part := make([]byte, 5)
	_, err = owner.Remote(user.Addr(), handle).Get(testContext(t), part, 3)
	require.NoError(t, err)
	require.Equal(t, "stsec", string(part))

	length := func(b mercury.Bulk) int {
		wire, err := b.AppendProc(nil)
		require.NoError(t, err)
		return len(wire) - 8
	}
	require.Equal(t, length(region.Bulk()), length(region.EagerBulk()), "closed")
	for _, c := range []struct {
		size   int
		access mercury.Access
		eager  bool
	}{
		{1, mercury.Read, true},
		{3<<10 - 88, mercury.Read, true}, // with a handle of 88 bytes
		{3<<10 - 87, mercury.Read, false},
		{1, mercury.Write, false},
		{1, mercury.Read | mercury.Write, false},
	} {
		region, err := owner.Lend(fill(c.size), c.access)
		require.NoError(t, err)
		want := 88
		if c.eager {
			want += c.size
		}
		require.Equal(t, want, length(region.EagerBulk()), "%+v", c)
		require.Equal(t, 88, length(region.Bulk()))
		require.NoError(t, region.Close())
	}
}

// TestBind checks that a service may pass on the handle of its client's memory, bound by either of
// them, and a third process reads and writes that.
func TestBind(t *testing.T) {
	client, service, third := open(t, mercury.Config{}), open(t, mercury.Config{}), open(t, mercury.Config{})
	work := mercury.Define[mercury.Bulk, struct{}]("work")
	work.Handle(third, func(ctx context.Context, in mercury.Bulk) (out struct{}, err error) {
		buf := make([]byte, in.Len())
		m := third.Remote(in.Owner(), in)
		if _, err = m.Get(ctx, buf, 0); err == nil {
			_, err = m.Put(ctx, bytes.ToUpper(buf), 0)
		}
		return out, err
	})
	work.Handle(service, func(ctx context.Context, in mercury.Bulk) (out struct{}, err error) {
		if in, err = in.Bind(mercury.RequestOf(ctx).Peer()); err != nil {
			return out, err
		}
		return work.Call(ctx, service, third.Addr(), in)
	})
	for _, bound := range []bool{false, true} {
		bufs := [][]byte{[]byte("ab"), []byte("cdef")}
		region, err := client.LendSegments(bufs, mercury.Read|mercury.Write, third.Addr())
		require.NoError(t, err)
		handle := region.Bulk()
		require.Empty(t, handle.Owner())
		if bound {
			handle, err = handle.Bind(client.Addr())
			require.NoError(t, err)
			require.Equal(t, client.Addr(), handle.Owner())
			_, err = handle.Bind(third.Addr())
			require.ErrorIs(t, err, mercury.ErrInvalid)
		}
		_, err = work.Call(testContext(t), client, service.Addr(), handle)
		require.NoError(t, err)
		require.Equal(t, "ABCDEF", string(bytes.Join(bufs, nil)))
		for _, addr := range []string{"", "ofi+tcp://0.0.0.0:7"} {
			_, err = region.Bulk().Bind(addr)
			require.ErrorIs(t, err, mercury.ErrInvalid)
		}
		require.NoError(t, region.Close())
	}
	_, err := mercury.Bulk{}.Bind(client.Addr())
	require.ErrorIs(t, err, mercury.ErrInvalid)
}

// TestRemoteReader checks that a Remote is an io.ReaderAt.
func TestRemoteReader(t *testing.T) {
	owner, user := open(t, mercury.Config{}), open(t, mercury.Config{})
	mem := fill(100_000)
	region, err := owner.Lend(mem, mercury.Read)
	require.NoError(t, err)
	m := user.Remote(owner.Addr(), region.Bulk()).With(testContext(t))
	got, err := io.ReadAll(io.NewSectionReader(m, 0, 1<<30))
	require.NoError(t, err)
	require.True(t, bytes.Equal(mem, got))
	_, err = m.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, mercury.ErrPermission)
	require.NoError(t, region.Close())
}

// TestActive checks that handlers beyond the limit wait, and those beyond the limit of the queue
// are refused.
func TestActive(t *testing.T) {
	target, origin := open(t, mercury.Config{MaxActive: 2, MaxQueued: 3}), open(t, mercury.Config{})
	running, goOn := make(chan struct{}, 10), make(chan struct{})
	target.Handle(1, func(r *mercury.Request) {
		running <- struct{}{}
		<-goOn
		_ = r.Respond(nil)
	})
	errs := make(chan error, 8)
	for range 8 {
		go func() {
			_, err := origin.Call(testContext(t), target.Addr(), 1, nil)
			errs <- err
		}()
	}
	for range 3 { // 8 - 2 - 3
		err := <-errs
		require.ErrorIs(t, err, mercury.ErrRefused)
		require.Equal(t, mercury.ErrAgain, mercury.CodeOf(err))
	}
	<-running
	<-running
	require.Empty(t, running)
	close(goOn)
	for range 5 {
		require.NoError(t, <-errs)
	}
}

// TestGoexit checks that handlers that end their goroutine, inline or not, are answered as failed,
// and neither take room from the next ones nor end the connection.
func TestGoexit(t *testing.T) {
	target, origin := open(t, mercury.Config{MaxActive: 2}), open(t, mercury.Config{})
	target.Handle(1, func(*mercury.Request) { runtime.Goexit() })
	target.HandleInline(2, func(*mercury.Request) { runtime.Goexit() })
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := origin.Call(testContext(t), target.Addr(), 1+uint64(i%2), nil)
			assert.ErrorIs(t, err, mercury.ErrRemote)
			assert.EqualValues(t, 26, mercury.CodeOf(err))
		})
	}
	wg.Wait()
	serveEcho(target)
	for _, id := range []uint64{echoID, echoID + 1000} {
		_, err := origin.Call(testContext(t), target.Addr(), id, nil)
		require.NoError(t, err)
	}
	require.Zero(t, target.Panics())
}

// TestDialBothWays has both sides dial at once, again and again: there is one connection in the
// end, and no call fails.
func TestDialBothWays(t *testing.T) {
	for range 30 {
		a, b := open(t, mercury.Config{Checksums: mercury.Off}), open(t, mercury.Config{Checksums: mercury.Off})
		serveEcho(a)
		serveEcho(b)
		errs := make(chan error, 2)
		for _, p := range [][2]*mercury.Node{{a, b}, {b, a}} {
			go func() {
				_, err := p[0].Call(testContext(t), p[1].Addr(), echoID, nil)
				errs <- err
			}()
		}
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.Len(t, a.Peers(), 1)
		require.Len(t, b.Peers(), 1)
	}
}

// TestCloseInHandler checks that a handler may close its node.
func TestCloseInHandler(t *testing.T) {
	target, origin := open(t, mercury.Config{}), open(t, mercury.Config{})
	target.HandleInline(1, func(r *mercury.Request) { _ = r.Node().Close() })
	_, err := origin.Call(testContext(t), target.Addr(), 1, nil)
	require.ErrorIs(t, err, mercury.ErrPeerLost)
	require.Equal(t, mercury.MaybeRan, mercury.FateOf(err))
}

// TestServedOnce checks that a connection that ends while it is read, from either side, leaves no
// request that is served twice.
func TestServedOnce(t *testing.T) {
	for range 100 {
		n := open(t, mercury.Config{})
		var runs atomic.Int64
		n.HandleInline(1, func(r *mercury.Request) {
			if runs.Add(1) == 20 {
				_ = r.Node().Close()
			}
		})
		d := dialDouble(t, n, 20)
		for i := range uint64(20) {
			d.sendRequest(i, 1, 0, nil)
			if i < 19 {
				d.recvResponse(i)
			}
		}
		d.requireEnded()
		t.Cleanup(func() { require.EqualValues(t, 20, runs.Load()) })
	}
}

func BenchmarkRate(b *testing.B) {
	target, origin := open(b, mercury.Config{}), open(b, mercury.Config{})
	serveEcho(target)
	in := make([]byte, 64)
	ctx := testContext(b)
	_, err := origin.Call(ctx, target.Addr(), echoID, in)
	require.NoError(b, err)
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					for range b.N / n {
						if _, err := origin.Call(ctx, target.Addr(), echoID, in); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
	runtime.GC()
}

// TestPanicIsLogged checks that the origin of a call whose handler panics gets a code only: the
// panic is in the target's log.
func TestPanicIsLogged(t *testing.T) {
	var log bytes.Buffer
	target, origin := open(t, mercury.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}), open(t, mercury.Config{})
	target.Handle(1, func(*mercury.Request) { panic("on purpose") })
	_, err := origin.Call(testContext(t), target.Addr(), 1, nil)
	require.Error(t, err)
	require.Contains(t, log.String(), `a handler panicked" rpc=0x1 peer=`+origin.Addr()+` panic="on purpose" stack=`) // written before the answer
	require.Contains(t, log.String(), "TestPanicIsLogged")
}
