package tcp_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// BenchmarkPingPong has two classes, each driven by a goroutine of its own, exchange a message and its answer.
func BenchmarkPingPong(b *testing.B) {
	for name, opts := range variants {
		for _, size := range []int{64, 4096} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) { pingPong(b, opts, size) })
		}
	}
}

func pingPong(b *testing.B, opts tcp.Options, size int) {
	origin := open(b, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	target := open(b, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		echo(target.ctx(), stop)
	}()
	c, to, msg := origin.ctx(), target.cls.Addr(), make([]byte, size)
	got, sent := 0, 0
	recv := c.NewOp(func(_ *na.Op, r na.Result) {
		got++
		r.Envelope.Free()
	})
	send := c.NewOp(func(*na.Op, na.Result) { sent++ })
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		_ = c.RecvUnexpected(recv)
		_ = c.SendUnexpected(send, to, 1, msg)
		for got <= i || sent <= i {
			_ = c.Progress(time.Second)
			c.Trigger(0)
		}
	}
	b.StopTimer()
	require.Equal(b, b.N, got)
	close(stop)
	target.ctx().Wake()
	<-finished
}

// echo returns every message to its sender until stop is closed.
func echo(c *na.Context, stop chan struct{}) {
	var env *na.Envelope
	var recv, send *na.Op
	send = c.NewOp(func(*na.Op, na.Result) {
		env.Free()
		_ = c.RecvUnexpected(recv)
	})
	recv = c.NewOp(func(_ *na.Op, r na.Result) {
		if r.Err == nil {
			env = r.Envelope
			_ = c.SendUnexpected(send, r.Addr, r.Tag, env.Data)
		}
	})
	_ = c.RecvUnexpected(recv)
	for {
		select {
		case <-stop:
			return
		default:
		}
		_ = c.Progress(time.Second)
		c.Trigger(0)
	}
}

// BenchmarkRate keeps many messages in flight.
func BenchmarkRate(b *testing.B) {
	for name, opts := range variants {
		b.Run(name, func(b *testing.B) {
			origin := open(b, "tcp://127.0.0.1:0", opts, na.Config{Envelopes: 256}, 1)
			target := open(b, "tcp://127.0.0.1:0", opts, na.Config{Envelopes: 256}, 1)
			stop := make(chan struct{})
			finished := make(chan struct{})
			received := 0
			go func() {
				defer close(finished)
				c := target.ctx()
				var recv *na.Op
				recv = c.NewOp(func(_ *na.Op, r na.Result) {
					if r.Err == nil {
						received++
						r.Envelope.Free()
						_ = c.RecvUnexpected(recv)
					}
				})
				_ = c.RecvUnexpected(recv)
				for received < b.N {
					_ = c.Progress(10 * time.Millisecond)
					c.Trigger(0)
				}
			}()
			c, to, msg := origin.ctx(), target.cls.Addr(), make([]byte, 64)
			const depth = 256
			left, done := b.N, 0
			again := func(op *na.Op, r na.Result) {
				done++
				if left > 0 {
					left--
					_ = c.SendUnexpected(op, to, 1, msg)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range depth {
				if left > 0 {
					left--
					_ = c.SendUnexpected(c.NewOp(again), to, 1, msg)
				}
			}
			for done < b.N {
				_ = c.Progress(10 * time.Millisecond)
				c.Trigger(0)
			}
			<-finished
			b.StopTimer()
			close(stop)
		})
	}
}

// BenchmarkMove moves bulk data, one operation after the other.
func BenchmarkMove(b *testing.B) {
	for name, opts := range variants {
		for _, put := range []bool{true, false} {
			for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
				what := "get"
				if put {
					what = "put"
				}
				b.Run(fmt.Sprintf("%s/%s/%dKiB", name, what, size>>10), func(b *testing.B) { move(b, opts, put, size) })
			}
		}
	}
}

func move(b *testing.B, opts tcp.Options, put bool, size int) {
	origin := open(b, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	target := open(b, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
	mem, err := target.cls.Register(na.ReadWrite, make([]byte, size))
	require.NoError(b, err)
	mine, err := origin.cls.NewMem(make([]byte, size))
	require.NoError(b, err)
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		echo(target.ctx(), stop)
	}()
	c, to := origin.ctx(), target.cls.Addr()
	done := 0
	o := c.NewOp(func(_ *na.Op, r na.Result) {
		if done++; r.Err != nil {
			b.Error(r.Err)
		}
	})
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if put {
			err = c.Put(o, mine, 0, to, mem.Key(), 0, int64(size))
		} else {
			err = c.Get(o, mine, 0, to, mem.Key(), 0, int64(size))
		}
		if err != nil {
			b.Fatal(err)
		}
		for done <= i {
			_ = c.Progress(time.Second)
			c.Trigger(0)
		}
	}
	b.StopTimer()
	close(stop)
	target.ctx().Wake()
	<-finished
}

// BenchmarkPingPongUnderLoad exchanges messages while bulk data is sent to the same peer without
// end: it measures how long a message waits behind it.
func BenchmarkPingPongUnderLoad(b *testing.B) {
	for name, opts := range variants {
		b.Run(name, func(b *testing.B) {
			const size = 16 << 20
			origin := open(b, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			target := open(b, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
			mem, err := target.cls.Register(na.ReadWrite, make([]byte, size))
			require.NoError(b, err)
			mine, err := origin.cls.NewMem(make([]byte, size))
			require.NoError(b, err)
			stop := make(chan struct{})
			finished := make(chan struct{})
			go func() {
				defer close(finished)
				echo(target.ctx(), stop)
			}()
			c, to, msg := origin.ctx(), target.cls.Addr(), make([]byte, 64)
			over, moved := false, 0
			var put *na.Op
			again := func() {
				if !over {
					_ = c.Put(put, mine, 0, to, mem.Key(), 0, size)
				}
			}
			put = c.NewOp(func(_ *na.Op, r na.Result) {
				moved += int(r.N)
				again()
			})
			again()
			got, sent := 0, 0
			recv := c.NewOp(func(_ *na.Op, r na.Result) {
				if got++; r.Err == nil {
					r.Envelope.Free()
				}
			})
			send := c.NewOp(func(*na.Op, na.Result) { sent++ })
			b.ResetTimer()
			for i := range b.N {
				_ = c.RecvUnexpected(recv)
				_ = c.SendUnexpected(send, to, 1, msg)
				for got <= i || sent <= i {
					_ = c.Progress(time.Second)
					c.Trigger(0)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(moved)/1e6/b.Elapsed().Seconds(), "bulk-MB/s")
			over = true
			close(stop)
			target.ctx().Wake()
			<-finished
		})
	}
}
