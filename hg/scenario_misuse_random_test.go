package hg_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

var (
	misuseSteps = flag.Int64("hg.misuse", long.Or[int64](20_000, 1_000_000), "steps of TestMisuseAtRandom; 1,000,000 in long runs")
	misuseSeed  = flag.Uint64("hg.misuse.seed", 0, "seed of TestMisuseAtRandom; 0: a random one")
)

// A misuseTest is a program in which every goroutine makes any call at any time.
type misuseTest struct {
	p    *pair
	id   hg.ID
	kept chan keptRequest

	steps, token, under atomic.Int64
	asked, reported     atomic.Int64 // callbacks of responses
	answers             atomic.Int64 // that arrived
	wrong               atomic.Pointer[error]
}

// A keptRequest is a request and its input, for longer than either lasts.
type keptRequest struct {
	hg.Request
	in []byte
}

// A misuseCall is a call with a unique input. The lock is what a program needs that closes a handle
// while a callback looks at its output.
type misuseCall struct {
	m     *misuseTest
	token int64
	mu    sync.Mutex // guards the fields below
	h     *hg.Handle
	busy  bool
	ended int
}

func (m *misuseTest) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	m.wrong.CompareAndSwap(nil, &err)
}

// handler answers, or leaves that to other goroutines, or to none.
func (m *misuseTest) handler(r hg.Request) error {
	var in []byte
	if err := r.Input(&in); err != nil {
		return err
	}
	token := binary.LittleEndian.Uint64(in)
	r.SetData(token)
	if token%2 == 0 {
		if err := r.Detach(); err != nil {
			return err
		}
	}
	select {
	case m.kept <- keptRequest{r, in}:
	default:
	}
	switch token % 16 {
	case 1, 3, 5, 8:
		m.answer(r, in)
	case 7:
		m.answer(r, in)
		m.answer(r, in)
	case 9:
		return errors.New("no")
	case 11:
		m.answer(r, in)
		r.Cancel()
	case 13:
		panic("no")
	}
	return nil
}

// answer gives r the answer to the question, and counts the callbacks.
func (m *misuseTest) answer(r hg.Request, question []byte) {
	m.asked.Add(1)
	if err := r.Respond(question, func(r hg.Request, err error) {
		m.reported.Add(1)
		if err != nil {
			m.answer(r, question) // once more, or that of no call any longer
		}
	}); err != nil {
		m.asked.Add(-1)
	}
}

// step acts on requests that run, were answered, or serve another call by now.
func (m *misuseTest) step(rng *rand.Rand, r keptRequest) {
	switch rng.IntN(9) {
	case 0, 1, 2:
		m.answer(r.Request, r.in)
	case 3:
		_ = r.Detach()
	case 4:
		r.Cancel()
	case 5:
		_ = r.Context().Err()
	case 6:
		m.asked.Add(1)
		if r.RespondError(hg.ErrNotFound, func(hg.Request, error) { m.reported.Add(1) }) != nil {
			m.asked.Add(-1)
		}
	case 7:
		_, _ = r.InputRaw()
		_ = r.SetOutputMeta(r.Meta())
		_ = fmt.Sprint(r.Name(), r.Peer(), r.Caller())
	case 8:
		if token := r.Data(); token != nil && token != binary.LittleEndian.Uint64(r.in) {
			m.fail("the data of %x is of %v", r.in, token)
		}
		_, _ = r.TimeLeft()
	}
}

// forward makes the next call of q's handle, and reports false if it makes one.
func (q *misuseCall) forward() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy {
		return false
	}
	m := q.m
	if q.h == nil {
		h, err := m.p.octx.Create(m.p.target.Addr(), m.id)
		if err != nil {
			m.fail("create: %w", err)
			return false
		}
		h.SetTimeout(5 * time.Millisecond)
		q.h = h
	}
	q.token, q.busy, q.ended = m.token.Add(1), true, 0
	m.under.Add(1)
	if err := q.h.Forward(binary.LittleEndian.AppendUint64(nil, uint64(q.token)), q.callback); err != nil {
		m.fail("forward: %w", err)
	}
	return true
}

func (q *misuseCall) callback(h *hg.Handle, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.m
	if q.ended++; q.ended != 1 || !q.busy {
		m.fail("called back %d times", q.ended)
	}
	if err == nil { // one that was closed in mid-call keeps its output until this has returned
		var out []byte
		if err := h.Output(&out); err != nil || int64(binary.LittleEndian.Uint64(out)) != q.token {
			m.fail("the answer to %d is %x, %v", q.token, out, err)
		}
		m.answers.Add(1)
	}
	q.busy = false
	m.under.Add(-1)
}

// endEarly ends a call that is in flight, and reports false if there is none.
func (q *misuseCall) endEarly(rng *rand.Rand) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.h == nil || !q.busy {
		return false
	}
	switch rng.IntN(4) {
	case 0:
		q.h.Cancel()
	case 1:
		q.h.Abandon()
	case 2:
		_ = q.h.Withdraw(time.Millisecond, func(*hg.Handle, hg.WithdrawResult) {})
	case 3:
		q.close()
	}
	return true
}

// close closes the handle, and once more. Locked.
func (q *misuseCall) close() {
	if err := q.h.Close(); err != nil {
		q.m.fail("close: %w", err)
	}
	if err := q.h.Close(); !errors.Is(err, hg.ErrClosed) {
		q.m.fail("second close: %v", err)
	}
	q.h.Cancel()
	q.h = nil
}

// TestMisuseAtRandom has eight goroutines call, answer, answer twice, answer late, detach, cancel,
// withdraw, close handles, and keep requests that have ended, at random. Each answer carries the
// input of its call, so a wrong one is detected, and each operation ends once.
func TestMisuseAtRandom(t *testing.T) {
	seed := *misuseSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("run again with -hg.misuse.seed=%d", seed)
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		m := &misuseTest{p: newPair(t, n, hg.Config{Logger: slog.New(slog.DiscardHandler)}), kept: make(chan keptRequest, 256)}
		m.id = m.p.rpc("any", m.handler)
		steps := *misuseSteps
		if n.Sim && !long.On { // eight goroutines and one that drives contend for the processors
			steps /= 5
		}
		questions := make([]*misuseCall, 64)
		for i := range questions {
			questions[i] = &misuseCall{m: m}
		}
		var all sync.WaitGroup
		for g := range uint64(8) {
			rng := rand.New(rand.NewPCG(seed, g))
			all.Go(func() {
				var mine []keptRequest
				for (m.steps.Load() < steps || m.answers.Load() == 0) && m.wrong.Load() == nil { // a handshake may take as long as all steps
					did := false
					if q := questions[rng.IntN(len(questions))]; rng.IntN(32) > 0 {
						did = q.forward()
					} else {
						did = q.endEarly(rng)
					}
					select {
					case r := <-m.kept:
						mine, did = append(mine, r), true
						m.step(rng, r)
						m.step(rng, mine[rng.IntN(len(mine))])
					default:
					}
					if len(mine) > 64 {
						mine = mine[32:]
					}
					switch {
					case did:
						m.steps.Add(1)
					case n.Sim: // its clock stands still while a goroutine polls
						runtime.Gosched()
					default:
						hctx := []*hg.Context{m.p.octx, m.p.tctx}[rng.IntN(2)]
						_ = hctx.Progress(0)
						hctx.Trigger(1)
					}
				}
			})
		}
		over := make(chan struct{})
		go func() { all.Wait(); close(over) }()
		for ended := false; !ended; {
			to := m.steps.Load() + 10_000 // each has the time of one Until
			n.Until(func() bool {
				select {
				case <-over:
					ended = m.wrong.Load() != nil || m.under.Load() == 0 && m.asked.Load() == m.reported.Load()
					return ended
				default:
					return m.steps.Load() >= to
				}
			})
		}
		if err := m.wrong.Load(); err != nil {
			require.NoError(t, *err)
		}
		for _, q := range questions {
			if q.h != nil {
				q.close()
			}
		}
		m.p.requireClean(0)
		t.Logf("%d calls, %d answers, %d callbacks of responses", m.token.Load(), m.answers.Load(), m.reported.Load())
		require.Positive(t, m.answers.Load())
	})
}
