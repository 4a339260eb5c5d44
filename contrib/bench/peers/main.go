// Command peers makes the calls of "qs perf" over other systems, and prints the same figures as JSON, for contrib/plot.
//
//	peers -peers grpc-tcp,net-rpc -inflight 1,16,64
//
//	this process: workers ── call ──► the same binary with -serve, a second process
//	                      ◄─ answer ─┘   a call says how long its answer is: as long as itself, or -bulk bytes
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

// A plan says what is measured, and for how long each.
type plan struct {
	time       time.Duration
	size, bulk int
	inFlight   []int
}

func main() {
	log.SetFlags(0)
	var names []string
	for _, s := range systems {
		names = append(names, s.name)
	}
	var p plan
	flag.DurationVar(&p.time, "time", time.Second, "time for each figure")
	flag.IntVar(&p.size, "size", 64, "bytes in and out of a call")
	flag.IntVar(&p.bulk, "bulk", 16<<20, "bytes that the server sends as bulk data; 0 for none")
	chosen := flag.String("peers", strings.Join(names, ","), "systems, with commas between")
	inFlight := flag.String("inflight", "1,16,64", "calls in flight, with commas between")
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
	var results []result
	for _, name := range strings.Split(*chosen, ",") {
		results = append(results, measure(find(name), p))
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

// measure starts a server and measures all of p.
func measure(s system, p plan) result {
	dir := must(os.MkdirTemp("", "peers")) // for its sockets
	defer func() { check(os.RemoveAll(dir)) }()
	server := exec.Command(must(os.Executable()), "-serve", s.name)
	server.Env, server.Stderr = append(os.Environ(), "TMPDIR="+dir), os.Stderr
	stop, out := must(server.StdinPipe()), must(server.StdoutPipe())
	check(server.Start())
	worker := s.dial(strings.TrimSpace(must(bufio.NewReader(out).ReadString('\n'))))
	var workers []caller
	for range max(1, slices.Max(p.inFlight)) {
		workers = append(workers, worker())
	}
	took := calls(workers[:1], request(p.size, p.size), p.size, p.time)
	slices.Sort(took)
	us := func(share int) float64 { return float64(took[len(took)*share/100]) / 1e3 }
	r := result{Peer: s.name, P50: us(50), P99: us(99), Rate: map[string]float64{}}
	for _, n := range p.inFlight {
		took := calls(workers[:n], request(p.size, p.size), p.size, p.time)
		r.Rate[strconv.Itoa(n)] = float64(len(took)) / p.time.Seconds()
	}
	if p.bulk > 0 {
		var all time.Duration
		took := calls(workers[:1], request(0, p.bulk), p.bulk, p.time)
		for _, d := range took {
			all += d
		}
		r.Bulk = float64(len(took)) * float64(p.bulk) / (1 << 20) / all.Seconds()
	}
	check(stop.Close())
	check(server.Wait())
	return r
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

// zeros is where bulk data comes from.
var zeros = sync.OnceValue(func() []byte { return make([]byte, 256<<20) })

// answer returns what a server answers to in: its bytes, or as many others as are asked for.
func answer(in []byte) ([]byte, error) {
	n := int(binary.BigEndian.Uint32(in))
	if n == len(in)-4 {
		return in[4:], nil
	}
	if n > len(zeros()) {
		return nil, fmt.Errorf("an answer of %d bytes is asked for, %d at most", n, len(zeros()))
	}
	return zeros()[:n], nil
}
