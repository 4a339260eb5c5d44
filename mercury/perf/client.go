package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// Options configures a measurement.
type Options struct {
	Size     int           // size of an argument or a transfer in bytes; 0 means 64
	InFlight int           // number of calls or transfers in flight; 0 means 1
	For      time.Duration // duration of the measurement; 0 means 1 second
	Verify   bool          // verify the data of transfers
}

// A Result holds the results of a measurement.
type Result struct {
	Calls int64
	Bytes int64 // total size of the arguments or transfers
	Took  time.Duration
}

// Rate returns the number of calls per second.
func (r Result) Rate() float64 { return float64(r.Calls) / r.Took.Seconds() }

// MiB returns the throughput in MiB per second.
func (r Result) MiB() float64 { return float64(r.Bytes) / (1 << 20) / r.Took.Seconds() }

// normalize replaces zero fields with their defaults and validates o.
func (o *Options) normalize() error {
	if o.Size == 0 {
		o.Size = 64
	}
	if o.InFlight == 0 {
		o.InFlight = 1
	}
	if o.For == 0 {
		o.For = time.Second
	}
	if o.Size < 0 || o.Size > 1<<30 || o.InFlight < 0 || o.InFlight > 1<<16 || o.For < 0 {
		return errors.New("perf: negative option, or Size larger than 1 GiB")
	}
	return nil
}

// Rate measures calls to a server with arguments and without output, like hg_rate. The server's buffer must be large
// enough, as set by hg_perf_server -z SIZE.
func Rate(ctx context.Context, n *mercury.Node, addr string, o Options) (Result, error) {
	if err := o.normalize(); err != nil {
		return Result{}, err
	}
	if _, err := rateInit.Call(ctx, n, addr, struct{}{}); err != nil {
		return Result{}, err
	}
	in := binary.LittleEndian.AppendUint32(nil, uint32(o.Size))
	in = append(in, make([]byte, o.Size)...)
	fillPattern(in[4:], o.Size, 0)
	return runConcurrently(ctx, o, func(ctx context.Context, _ int) error {
		_, err := n.Call(ctx, addr, idRate, in)
		return err
	})
}

// Ping makes one call without arguments and returns the time it took.
func Ping(ctx context.Context, n *mercury.Node, addr string) (time.Duration, error) {
	begun := time.Now()
	_, err := first.Call(ctx, n, addr, struct{}{})
	return time.Since(begun), err
}

// Bandwidth measures transfers of lent memory by a server. If serverWrites is set, the server writes the memory, like
// hg_bw_read. Otherwise it reads the memory, like hg_bw_write.
func Bandwidth(ctx context.Context, n *mercury.Node, addr string, serverWrites bool, o Options) (Result, error) {
	if err := o.normalize(); err != nil {
		return Result{}, err
	}
	op, access, method := uint32(pull), mercury.Read, bwWrite
	if serverWrites {
		op, access, method = push, mercury.Write, bwRead
	}
	all := make([]byte, o.InFlight*o.Size)
	for i := range o.InFlight {
		mem := all[i*o.Size : (i+1)*o.Size]
		if !serverWrites {
			fillPattern(mem, o.Size, uint32(i))
		}
		region, err := n.Lend(mem, access, addr)
		if err != nil {
			return Result{}, err
		}
		defer region.Close()
		in := initIn{Mem: region.Bulk(), Op: op, Handle: uint32(i), Handles: uint32(o.InFlight), Count: 1, Size: uint32(o.Size),
			Clients: 1, Servers: 1, Verifying: o.Verify}
		if _, err := initMem.Call(ctx, n, addr, in); err != nil {
			return Result{}, err
		}
	}
	r, err := runConcurrently(ctx, o, func(ctx context.Context, i int) error {
		_, err := method.Call(ctx, n, addr, transferIn{Handle: uint32(i), Size: uint32(o.Size)})
		return err
	})
	for i := range o.InFlight {
		if err == nil && serverWrites && o.Verify {
			err = verify(all[i*o.Size:(i+1)*o.Size], o.Size, o.Size, uint32(i))
		}
	}
	return r, err
}

// Done notifies the server at addr that the measurement is complete. In response, hg_perf_server frees its buffers and
// exits, and Serve calls its done function.
func Done(ctx context.Context, n *mercury.Node, addr string) error {
	_, err := done.Call(ctx, n, addr, struct{}{})
	return err
}

// runConcurrently calls do repeatedly in each of Options.InFlight goroutines until Options.For has elapsed.
func runConcurrently(ctx context.Context, o Options, do func(ctx context.Context, i int) error) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, o.For+30*time.Second)
	defer cancel()
	var over atomic.Bool
	timer := time.AfterFunc(o.For, func() { over.Store(true) })
	defer timer.Stop()
	counts, errs := make([]int64, o.InFlight), make([]error, o.InFlight)
	var wg sync.WaitGroup
	begun := time.Now()
	for i := range o.InFlight {
		wg.Go(func() {
			var n int64
			for ; !over.Load() && errs[i] == nil; n++ {
				if errs[i] = do(ctx, i); errs[i] != nil {
					over.Store(true)
					return
				}
			}
			counts[i] = n
		})
	}
	wg.Wait()
	r := Result{Took: time.Since(begun)}
	for _, n := range counts {
		r.Calls += n
	}
	r.Bytes = r.Calls * int64(o.Size)
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("perf: %w", err)
	}
	return r, nil
}
