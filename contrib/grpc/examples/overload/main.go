// Command overload offers a service more calls than it can handle, over grpc-go and over Quicksilver, and prints how
// many answers per second arrive in time. It then suspends the server's process and prints how long a call takes to
// return after its context is canceled.
//
//	go run ./examples/overload
//
// The handler computes for about -work, on one processor. Calls begin at a fixed rate, regardless of whether others
// have been answered, and have a deadline of -deadline. Rates are multiples of the capacity, which is the rate at which
// the same server serves 4 callers that each wait for their answers. "limited" means qs.MaxConcurrent(2) and
// qs.MaxQueue(8), or grpc.MaxConcurrentStreams(10). Excess calls are rejected by Quicksilver, but wait in grpc-go's
// client.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	work     = flag.Duration("work", time.Millisecond, "how long the handler computes")
	deadline = flag.Duration("deadline", 50*time.Millisecond, "deadline of each call")
	second   = flag.Duration("time", 2*time.Second, "how long each rate is offered")
	rounds   = flag.Int("rounds", 3, "how often each row is measured")
	cancels  = flag.Int("cancels", 1000, "calls to a stopped server that are canceled")
	serving  = flag.String("serve", "", "internal: run as this server")
	loops    = flag.Int("loops", 0, "internal: what the handler computes")
)

var compute = qs.Define[[]byte, []byte]("overload/compute")

func main() {
	flag.Parse()
	runtime.GOMAXPROCS(1) // one processor each for the server and the client
	var err error
	if *serving != "" {
		err = serve(*serving)
	} else {
		err = measure(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// burn computes hashes in loops iterations.
func burn(loops int) []byte {
	sum := sha256.Sum256(nil)
	for range loops {
		sum = sha256.Sum256(sum[:])
	}
	return sum[:]
}

// calibrate returns the number of loops that take about d.
func calibrate(d time.Duration) int {
	n := 1000
	begun := time.Now()
	burn(n)
	return max(1, int(float64(n)*float64(d)/float64(time.Since(begun))))
}

type service struct {
	testgrpc.UnimplementedTestServiceServer
}

func (service) UnaryCall(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: burn(*loops)}}, nil
}

// serve runs a server until stdin is closed. A name that ends in "-limited" selects a server with limits.
func serve(name string) error {
	system, limits, _ := strings.Cut(name, "-")
	done := make(chan error, 1)
	if system == "grpc" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		var opts []grpc.ServerOption
		if limits != "" {
			opts = append(opts, grpc.MaxConcurrentStreams(10))
		}
		s := grpc.NewServer(opts...)
		testgrpc.RegisterTestServiceServer(s, service{})
		fmt.Println(l.Addr())
		go func() { done <- s.Serve(l) }()
	} else {
		node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		var opts []qs.Option
		if limits != "" {
			opts = append(opts, qs.MaxConcurrent(2), qs.MaxQueue(8))
		}
		qs.Define[[]byte, []byte]("overload/compute", opts...).Handle(node, func(context.Context, []byte) ([]byte, error) {
			return burn(*loops), nil
		})
		fmt.Println(node.Addr())
		go func() { done <- node.Serve(context.Background()) }()
	}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		done <- err
	}()
	return <-done
}

// A side is a client together with its server process.
type side struct {
	call  func(ctx context.Context) error
	close func()
	cmd   *exec.Cmd
}

// open starts the named server, whose handler computes loops iterations.
func open(name string, loops int) (*side, error) {
	s := &side{cmd: exec.Command(os.Args[0], "-serve", name, "-loops", strconv.Itoa(loops))}
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = s.cmd.Start(); err != nil {
		return nil, err
	}
	var addr string
	if _, err = fmt.Fscanln(stdout, &addr); err != nil {
		return nil, err
	}
	var closeClient func() error
	if strings.HasPrefix(name, "grpc") {
		cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		tc := testgrpc.NewTestServiceClient(cc)
		s.call = func(ctx context.Context) error {
			_, err := tc.UnaryCall(ctx, &testgrpc.SimpleRequest{})
			return err
		}
		closeClient = cc.Close
	} else {
		node, err := qs.Open("tcp://", qs.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		to, err := node.Peer(context.Background(), addr)
		if err != nil {
			return nil, err
		}
		s.call = func(ctx context.Context) error {
			_, err := compute.Call(ctx, to, nil)
			return err
		}
		closeClient = node.Close
	}
	s.close = func() {
		_ = closeClient()
		_ = stdin.Close()
		_ = s.cmd.Wait()
	}
	return s, nil
}

// capacity returns the number of calls per second that the server answers for 4 callers.
func (s *side) capacity() (float64, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	n := 0
	begun := time.Now()
	for range 4 {
		wg.Go(func() {
			for time.Since(begun) < *second {
				err := s.call(context.Background())
				mu.Lock()
				n++
				failed = errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(begun).Seconds(), failed
}

// offer starts rate calls per second. It returns the number of answers per second that arrived within the deadline, and
// the 99th percentile of their latencies.
func (s *side) offer(rate float64) (good float64, p99 time.Duration) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	begun := time.Now()
	for started := 0; ; started++ {
		at := begun.Add(time.Duration(float64(started) / rate * float64(time.Second)))
		if at.Sub(begun) >= *second {
			break
		}
		time.Sleep(time.Until(at)) // several calls start at once if the timer is coarser than the rate
		wg.Go(func() {
			// The deadline is relative to the time at which the call was scheduled to begin.
			ctx, cancel := context.WithDeadline(context.Background(), at.Add(*deadline))
			defer cancel()
			err := s.call(ctx)
			if d := time.Since(at); err == nil && d <= *deadline {
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	if len(took) > 0 {
		p99 = took[len(took)*99/100]
	}
	return float64(len(took)) / second.Seconds(), p99
}

// cancelHung suspends the server's process and returns how long calls take to return after their contexts are canceled.
func (s *side) cancelHung() (p50, p99 time.Duration, err error) {
	if err = s.call(context.Background()); err != nil {
		return 0, 0, err
	}
	if err = s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return 0, 0, err
	}
	defer func() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }()
	var took []time.Duration
	for range *cancels {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan time.Time)
		go func() {
			_ = s.call(ctx)
			ended <- time.Now()
		}()
		time.Sleep(100 * time.Microsecond) // the call is in progress
		begun := time.Now()
		cancel()
		took = append(took, (<-ended).Sub(begun))
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], nil
}

// A row holds the medians over all rounds for one server at one rate.
type row struct {
	good, p99 []float64
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func measure(out io.Writer) error {
	names := []string{"grpc", "grpc-limited", "qs", "qs-limited"}
	times := []float64{0.5, 1, 2, 4}
	n := calibrate(*work)
	rows := map[string]map[float64]*row{}
	hung := map[string]*row{}
	capacities := map[string][]float64{}
	for range *rounds {
		for _, name := range names {
			if err := measureRound(name, n, times, rows, hung, capacities); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	fmt.Fprintf(out, "%-14s %9s", "", "capacity")
	for _, x := range times {
		fmt.Fprintf(out, " %8.1f x %9s", x, "p99 ms")
	}
	fmt.Fprintf(out, " %12s %9s\n", "hung p50 us", "p99 us")
	for _, name := range names {
		fmt.Fprintf(out, "%-14s %9.0f", name, median(capacities[name]))
		for _, x := range times {
			r := rows[name][x]
			fmt.Fprintf(out, " %10.0f %9.1f", median(r.good), median(r.p99))
		}
		fmt.Fprintf(out, " %12.0f %9.0f\n", median(hung[name].good), median(hung[name].p99))
	}
	return nil
}

// measureRound runs one round of measurements of one server.
func measureRound(name string, loops int, times []float64, rows map[string]map[float64]*row, hung map[string]*row, capacities map[string][]float64) error {
	s, err := open(name, loops)
	if err != nil {
		return err
	}
	defer s.close()
	most, err := s.capacity()
	if err != nil {
		return err
	}
	capacities[name] = append(capacities[name], most)
	if rows[name] == nil {
		rows[name], hung[name] = map[float64]*row{}, &row{}
	}
	for _, x := range times {
		r := rows[name][x]
		if r == nil {
			r = &row{}
			rows[name][x] = r
		}
		good, p99 := s.offer(x * most)
		r.good, r.p99 = append(r.good, good), append(r.p99, float64(p99)/1e6)
	}
	p50, p99, err := s.cancelHung()
	hung[name].good, hung[name].p99 = append(hung[name].good, float64(p50)/1e3), append(hung[name].p99, float64(p99)/1e3)
	return err
}
