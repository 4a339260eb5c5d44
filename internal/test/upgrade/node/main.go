// Command node is one process of the tests of rolling upgrades: it serves a few methods, and calls
// those of its peers some hundred times a second.
//
//	stdin   ◄── "go": begin to call; "mark": count anew; "stop": call no more; its end: drain, report
//	stdout  ──► "listens"; "works": each kind of call has succeeded often enough, and peers have called, since "go" or the last "mark";
//	             "stopped"; "failed" and why, when a call has failed that must not; the report, in JSON
//
// It is built at the commit of the release before, too, so its messages to peers change as the
// methods of any program may: fields are added.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/test/upgrade"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	callTime = 30 * time.Second // limits each call: a call that takes longer has failed
	items    = 40               // of a stream
	often    = 3                // successes of each kind that make it work
	pace     = 20 * time.Millisecond
)

// lentInput is the input of sum.
type lentInput struct {
	Data qs.Source
}

var (
	always = qs.Retry(qs.RetryPolicy{Attempts: 100, BudgetRatio: -1})
	echo   = qs.Define[question, answer]("upgrade/echo", qs.Idempotent(), always)
	sum    = qs.Define[lentInput, uint32]("upgrade/sum", qs.Idempotent(), always)
	add    = qs.Define[uint64, bool]("upgrade/add")
	count  = qs.DefineStream[uint64, uint64]("upgrade/count")
	talk   = qs.DefineDuplex[uint64, uint64, uint64]("upgrade/talk")
)

// A node is this process.
type node struct {
	n     *qs.Node
	first uint64  // of the numbers of its adds
	peers qs.Peer // in turn
	stop  chan struct{}

	mu       sync.Mutex // guards the fields below
	report   upgrade.Report
	since    map[string]int // successes since "go", or the last "mark"
	reported bool           // "works" was printed
}

func main() {
	listen := flag.String("listen", "", "where to listen")
	peers := flag.String("peers", "", "addresses of the peers, with blanks between")
	first := flag.Uint64("first", 0, "first number of this process's adds")
	cert := flag.String("cert", "", "certificate")
	key := flag.String("key", "", "its key")
	flag.Parse()
	if err := run(*listen, strings.Fields(*peers), *first, *cert, *key); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

func run(listen string, peers []string, first uint64, cert, key string) error {
	secure, err := qs.LoadTLS(cert, key, cert)
	if err != nil {
		return err
	}
	n, err := qs.Open(listen, qs.Config{TLS: secure, ShutdownTimeout: callTime})
	if err != nil {
		return err
	}
	x := &node{n: n, first: first, stop: make(chan struct{}), since: map[string]int{}}
	x.report.Adds = map[uint64]string{}
	x.serve()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	if x.peers, err = n.PeerWith(ctx, qs.PeerOptions{Balancer: qs.RoundRobin()}, peers...); err != nil {
		return err
	}
	fmt.Println("listens")
	var calls sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "go":
			for kind, call := range map[string]func(seq uint64) error{
				"echo": x.callEcho, "sum": x.callSum, "add": x.callAdd, "count": x.callCount, "talk": x.callTalk,
			} {
				calls.Go(func() { x.loop(kind, call) })
			}
		case "mark":
			x.mu.Lock()
			x.since, x.reported = map[string]int{}, false
			x.mu.Unlock()
		case "stop":
			close(x.stop)
			calls.Wait()
			fmt.Println("stopped")
		}
	}
	end()
	if err := <-ended; err != nil {
		x.fail("shutdown", err)
	}
	addLater(&x.report)
	return json.NewEncoder(os.Stdout).Encode(&x.report)
}

// loop calls until the process is to stop.
func (x *node) loop(kind string, call func(seq uint64) error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for seq := uint64(0); ; seq++ {
		select {
		case <-x.stop:
			return
		case <-tick.C:
		}
		err := call(seq)
		switch {
		case err == nil:
			x.count(kind)
		case errors.Is(err, errExpected):
			if seq < often { // for the search of the reason why it does not work
				fmt.Fprintln(os.Stderr, kind, err)
			}
		default:
			x.fail(kind, err)
		}
	}
}

func (x *node) count(kind string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if kind != called {
		x.report.Calls++
	}
	x.since[kind]++
	for _, kind := range []string{"echo", "sum", "add", "count", "talk", called} {
		if x.since[kind] < often {
			return
		}
	}
	if !x.reported {
		x.reported = true
		fmt.Println("works")
	}
}

func (x *node) fail(kind string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.report.Failed++
	if x.report.Failed == 1 {
		fmt.Println("failed:", kind, err)
	}
	if len(x.report.Failures) < 10 {
		x.report.Failures = append(x.report.Failures, kind+": "+err.Error())
	}
}

// called is the kind of the adds that run here.
const called = "called"

// errExpected is the end of a call that may fail while its target is replaced.
var errExpected = errors.New("the target was replaced")

// wrongAnswer returns the error of an answer that is wrong: whatever happens to its target, a call never
// gets one.
func wrongAnswer(rule string, args ...any) error {
	return fmt.Errorf("rule %q is broken: "+rule, append([]any{rule}, args...)...)
}

// serve registers the methods for the peers.
func (x *node) serve() {
	echo.Handle(x.n, func(_ context.Context, in question) (answer, error) { return reply(in), nil })
	sum.Handle(x.n, func(ctx context.Context, in lentInput) (uint32, error) {
		h := crc32.NewIEEE()
		_, err := io.Copy(h, in.Data.Reader(ctx))
		return h.Sum32(), err
	})
	add.Handle(x.n, func(_ context.Context, id uint64) (bool, error) {
		x.mu.Lock()
		x.report.Ran = append(x.report.Ran, id)
		x.mu.Unlock()
		x.count(called)
		return true, nil
	})
	count.Handle(x.n, func(_ context.Context, from uint64, send func(uint64) error) error {
		for i := range uint64(items) {
			if err := send(from + i); err != nil {
				return err
			}
		}
		return nil
	})
	talk.Handle(x.n, func(ctx context.Context, from uint64, s *qs.DuplexServer[uint64, uint64]) error {
		for {
			v, err := s.Receive()
			if err == io.EOF {
				return nil
			}
			if err == nil {
				err = s.Send(from + v)
			}
			if err != nil {
				return err
			}
		}
	})
}

// testData returns bytes of a length that goes inline, beside a message, or is lent, in turn.
func testData(seq uint64) []byte {
	b := make([]byte, []int{10, 3_000, 20_000, 300_000}[seq%4])
	for i := range b {
		b[i] = byte(seq) + byte(i*7)
	}
	return b
}

func (x *node) callEcho(seq uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	in := question{N: x.first + seq, Data: testData(seq)}
	out, err := echo.Call(ctx, x.peers, in)
	if err == nil && (out.N != in.N || string(out.Data) != string(in.Data)) {
		return wrongAnswer("an answer is never that of another call, or damaged: asked %d with %d bytes, got %d with %d", in.N, len(in.Data), out.N, len(out.Data))
	}
	return err
}

func (x *node) callSum(seq uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	b := make([]byte, 256<<10)
	for i := range b {
		b[i] = byte(seq) ^ byte(i>>3)
	}
	got, err := sum.Call(ctx, x.peers, lentInput{qs.Bytes(b)})
	if want := crc32.ChecksumIEEE(b); err == nil && got != want {
		return wrongAnswer("a transfer that has succeeded has moved the bytes: got the checksum %#x, want %#x", got, want)
	}
	return err
}

func (x *node) callAdd(seq uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	id, fate := x.first+seq, "ok"
	_, err := add.Call(ctx, x.peers, id)
	if err != nil {
		fate = qs.FateOf(err).String()
	}
	x.mu.Lock()
	x.report.Adds[id] = fate
	x.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errExpected, err)
	}
	return err
}

// callCount reads a stream. Until it fails, its items are those that were sent, in their order; it
// ends after the last one.
func (x *node) callCount(seq uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	next := seq
	for item, err := range count.Call(ctx, x.peers, seq) {
		switch {
		case err != nil && ctx.Err() == nil:
			return errExpected
		case err != nil:
			return err
		case item != next:
			return wrongAnswer("the items of a stream come in their order, each once: got %d, want %d", item, next)
		}
		next++
	}
	if next != seq+items {
		return wrongAnswer("a stream that ends without an error is whole: got %d items, want %d", next-seq, items)
	}
	return nil
}

func (x *node) callTalk(seq uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	s := talk.Call(ctx, x.peers, seq)
	defer s.Close()
	for i := range uint64(items) {
		if err := s.Send(i); err != nil && err != io.EOF { // Receive returns the reason
			return streamEnd(ctx, err)
		}
		got, err := s.Receive()
		switch {
		case err == io.EOF:
			return wrongAnswer("a stream that ends without an error is whole: got %d items, want %d", i, items)
		case err != nil:
			return streamEnd(ctx, err)
		case got != seq+i:
			return wrongAnswer("the items of a stream come in their order, each once: got %d, want %d", got, seq+i)
		}
	}
	s.CloseSend()
	if _, err := s.Receive(); err != io.EOF {
		return streamEnd(ctx, err)
	}
	return nil
}

// streamEnd returns the meaning of the end of a stream with err.
func streamEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return errExpected
}
