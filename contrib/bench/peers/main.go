// Command peers makes the calls of "qs perf" over other systems, and prints the same figures as JSON, for contrib/plot.
//
//	peers -peers grpc-tcp,net-rpc -inflight 1,16,64
//
//	this process: workers ── call ──► the same binary with -serve, a second process
//	                      ◄─ answer ─┘   a call says how long its answer is: -answer bytes, or -bulk bytes
//
// -op mixed measures calls and bulk data alone, and then beside one another, as "qs perf -op mixed" does.
//
// A worker has one call in flight. Workers of grpc, net/rpc, quic and shmipc share a connection; where one carries only one call at a
// time each worker has its own. It is a module of its own, so that the library needs none of these systems.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A caller makes one call and returns the answer, in out, if it has room for it.
type caller func(in, out []byte) ([]byte, error)

// A system is what is measured. serve answers calls from now on and returns its address. dial connects, and returns what makes
// the caller of each worker.
type system struct {
	name  string
	serve func() (addr string)
	dial  func(addr string) (worker func() caller)
}

var systems = []system{raw("tcp"), raw("unix"), grpcGo, drpcGo, netRPC, ttrpcGo, quicGo, kcpGo, shmipcGo}

// A result has the fields of "qs perf -json".
type result struct {
	Peer string             `json:"peer"`
	P50  float64            `json:"lat_p50_us"` // one call in flight
	P99  float64            `json:"lat_p99_us"`
	Rate map[string]float64 `json:"rate_per_s"` // by calls in flight
	Bulk float64            `json:"bulk_mib_per_s,omitempty"`
}

// A mixedResult has the fields of "qs perf -op mixed -json", and the rate of bulk data alone.
type mixedResult struct {
	Peer     string  `json:"peer"`
	IdleP50  float64 `json:"idle_p50_us"` // one call in flight
	IdleP99  float64 `json:"idle_p99_us"`
	BusyP50  float64 `json:"busy_p50_us"` // beside bulk data
	BusyP99  float64 `json:"busy_p99_us"`
	IdleBulk float64 `json:"idle_bulk_mib_per_s"`
	Bulk     float64 `json:"bulk_mib_per_s"` // beside calls
}

// A plan says what is measured, and for how long each.
type plan struct {
	time         time.Duration
	size, answer int // bytes of a call and of its answer
	bulk         int // bytes of an answer that is bulk data
	inFlight     []int
}

func main() {
	log.SetFlags(0)
	var names []string
	for _, s := range systems {
		names = append(names, s.name)
	}
	var p plan
	flag.DurationVar(&p.time, "time", time.Second, "time for each figure")
	flag.IntVar(&p.size, "size", 64, "bytes of a call")
	flag.IntVar(&p.answer, "answer", -1, "bytes of an answer; -1: as many as the call has")
	flag.IntVar(&p.bulk, "bulk", 16<<20, "bytes that the server sends as bulk data; 0 for none")
	chosen := flag.String("peers", strings.Join(names, ","), "systems, with commas between")
	inFlight := flag.String("inflight", "1,16,64", "calls in flight, with commas between")
	op := flag.String("op", "", "mixed: calls, and bulk data of one worker, alone and then beside one another; otherwise latency, rates and bulk data")
	serve := flag.String("serve", "", "serve this system, for another process of this program")
	flag.Bool("json", true, "print JSON; there is nothing else")
	flag.Parse()
	if *serve != "" {
		fmt.Println(find(*serve).serve())
		_, _ = io.Copy(io.Discard, os.Stdin) // until the process that started this one has ended
		return
	}
	for _, s := range strings.Split(*inFlight, ",") {
		p.inFlight = append(p.inFlight, must(strconv.Atoi(s)))
	}
	if p.answer < 0 {
		p.answer = p.size
	}
	if p.answer < 1 {
		log.Fatal("peers: an answer has at least one byte: calls on streams do not wait for none")
	}
	if *op != "" && *op != "mixed" {
		log.Fatalf("peers: -op is %q, want mixed, or nothing", *op)
	}
	var results []any
	for _, name := range strings.Split(*chosen, ",") {
		if *op == "mixed" {
			results = append(results, measureMixed(find(name), p))
		} else {
			results = append(results, measure(find(name), p))
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(results))
}

func find(name string) system {
	i := slices.IndexFunc(systems, func(s system) bool { return s.name == name })
	if i < 0 {
		log.Fatalf("peers: no system %q; -h shows them", name)
	}
	return systems[i]
}

func check(err error) {
	if err != nil {
		log.Fatal("peers: ", err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// start starts a server, and returns n workers that call it, and what stops it.
func start(s system, n int) (workers []caller, stop func()) {
	dir := must(os.MkdirTemp("", "peers")) // for its sockets
	server := exec.Command(must(os.Executable()), "-serve", s.name)
	server.Env, server.Stderr = append(os.Environ(), "TMPDIR="+dir), os.Stderr
	stdin, out := must(server.StdinPipe()), must(server.StdoutPipe())
	check(server.Start())
	worker := s.dial(strings.TrimSpace(must(bufio.NewReader(out).ReadString('\n'))))
	for range n {
		workers = append(workers, worker())
	}
	return workers, func() {
		check(stdin.Close())
		check(server.Wait())
		check(os.RemoveAll(dir))
	}
}

// measure starts a server and measures latency, rates and bulk data.
func measure(s system, p plan) result {
	workers, stop := start(s, max(1, slices.Max(p.inFlight)))
	defer stop()
	r := result{Peer: s.name, Rate: map[string]float64{}}
	in := request(p.size, p.answer)
	r.P50, r.P99 = percentiles(calls(workers[:1], in, p.answer, p.time))
	for _, n := range p.inFlight {
		took := calls(workers[:n], in, p.answer, p.time)
		r.Rate[strconv.Itoa(n)] = float64(len(took)) / p.time.Seconds()
	}
	if p.bulk > 0 {
		r.Bulk = bulkRate(calls(workers[:1], request(0, p.bulk), p.bulk, p.time), p.bulk)
	}
	return r
}

// measureMixed starts a server and measures the calls of one worker and the bulk data of another, alone and then beside one another.
func measureMixed(s system, p plan) mixedResult {
	workers, stop := start(s, 2)
	defer stop()
	r := mixedResult{Peer: s.name}
	in := request(p.size, p.answer)
	r.IdleP50, r.IdleP99 = percentiles(calls(workers[:1], in, p.answer, p.time))
	r.IdleBulk = bulkRate(calls(workers[1:], request(0, p.bulk), p.bulk, p.time), p.bulk)
	call, bulk := request(0, p.bulk), make([]byte, p.bulk)
	var isOver atomic.Bool
	moving, moved := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var took []time.Duration
		for !isOver.Load() || len(took) < 2 {
			begun := time.Now()
			if got := must(workers[1](call, bulk)); len(got) != p.bulk {
				log.Fatalf("peers: an answer of %d bytes, want %d", len(got), p.bulk)
			}
			if took = append(took, time.Since(begun)); len(took) == 1 {
				close(moving)
			}
		}
		moved <- took[1:] // the first one is before the calls
	}()
	<-moving
	r.BusyP50, r.BusyP99 = percentiles(calls(workers[:1], in, p.answer, p.time))
	isOver.Store(true)
	r.Bulk = bulkRate(<-moved, p.bulk)
	return r
}

// percentiles returns the median and the 99th percentile of times, in microseconds.
func percentiles(took []time.Duration) (p50, p99 float64) {
	slices.Sort(took)
	us := func(share int) float64 { return float64(took[len(took)*share/100]) / 1e3 }
	return us(50), us(99)
}

// bulkRate returns MiB a second of answers of size bytes, one after the other.
func bulkRate(took []time.Duration, size int) float64 {
	var all time.Duration
	for _, d := range took {
		all += d
	}
	return float64(len(took)) * float64(size) / (1 << 20) / all.Seconds()
}

// calls has each worker call for d, checks that answers have size bytes, and returns how long each call took.
func calls(workers []caller, in []byte, size int, d time.Duration) (all []time.Duration) {
	var mu sync.Mutex // guards all
	var wg sync.WaitGroup
	for _, call := range workers {
		wg.Go(func() {
			var took []time.Duration
			out := make([]byte, size)
			_ = must(call(in, out)) // memory that is used the first time costs more
			now := time.Now()
			for end := now.Add(d); now.Before(end) || took == nil; {
				begun := now
				if got := must(call(in, out)); len(got) != size {
					log.Fatalf("peers: an answer of %d bytes, want %d", len(got), size)
				}
				now = time.Now()
				took = append(took, now.Sub(begun))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	return all
}

// request returns a call of so many bytes beside the length of the answer.
func request(size, answer int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(answer)), make([]byte, size)...)
}

// largestAnswer is how many bytes a call can ask for.
const largestAnswer = 1 << 30

// data is where bulk data comes from. Its pages are written: reading those of memory that never was costs no memory bandwidth.
var data struct {
	mu sync.Mutex // guards b, but not its bytes
	b  []byte
}

// dataOf returns n bytes of data.
func dataOf(n int) []byte {
	data.mu.Lock()
	defer data.mu.Unlock()
	if len(data.b) < n {
		data.b = make([]byte, n)
		for i := range data.b {
			data.b[i] = byte(i)
		}
	}
	return data.b[:n]
}

// answer returns what a server answers to in: its bytes, or as many others as are asked for.
func answer(in []byte) ([]byte, error) {
	n := int(binary.BigEndian.Uint32(in))
	if n == len(in)-4 {
		return in[4:], nil
	}
	if n > largestAnswer {
		return nil, fmt.Errorf("an answer of %d bytes is asked for, %d at most", n, largestAnswer)
	}
	return dataOf(n), nil
}
