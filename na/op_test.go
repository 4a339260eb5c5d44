package na

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// The life of an operation, step by step. A step is a word; what it must report follows it.
//
//	start, start!     start, must be accepted; refused with ErrBusy
//	finish+, finish-  finish the ticket, must be the first; must be refused
//	old-              finish, hold with a ticket of an earlier life: refused
//	hold+, hold-      borrow the memory
//	release           give it back
//	cancel            Cancel, which only marks: the plugin here does nothing
//	marked+, marked-  Canceling
//	busy+, busy-      Busy
//	due               the time is up: Trigger has the plugin end it, unless that has
//	held              Trigger does so, and runs no callback
//	0, 1              Trigger runs as many callbacks
func TestOpLife(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"success":                         "busy- start busy+ finish+ busy+ 1 busy- 0",
		"one at a time":                   "start start! finish+ start! 1 start finish+ 1",
		"the first finish wins":           "start finish+ finish- finish- 1 finish- 0",
		"a ticket is good for one life":   "start finish+ 1 start old- finish+ old- 1 old- 0",
		"delivery waits for the holder":   "start hold+ finish+ 0 busy+ release 1 0",
		"delivery waits for all":          "start hold+ hold+ hold+ finish+ release release 0 release 1",
		"no hold once it is decided":      "start hold+ finish+ hold- release hold- 1 hold-",
		"holds come and go":               "start hold+ release hold+ release busy+ 0 finish+ 1",
		"cancel marks":                    "start marked- cancel marked+ busy+ 0 finish+ 1 marked-",
		"cancel again changes nothing":    "start cancel cancel cancel marked+ finish+ cancel 1 cancel 0",
		"cancel of an idle operation":     "cancel start marked- finish+ 1 cancel marked-",
		"the next life is not marked":     "start cancel finish+ 1 start marked- finish+ 1",
		"canceled and held":               "start hold+ cancel finish+ 0 release 1",
		"success wins over a late cancel": "start finish+ cancel marked- 1",
		"its time is up":                  "start due 1 busy- finish- 0",
		"ended, and then its time is up":  "start finish+ due 1 0",
		"its time is up, and then ended":  "start due finish+ 1 0",
		"its time is up while it is held": "start hold+ hold+ due held busy+ hold- finish- release 0 release 1 busy- 0 start hold+ release finish+ 1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a Trigger that finds memory held waits for a moment
			c, f := newFake(t, Config{})
			ran := 0
			op := c.NewOp(func(*Op, Result) { ran++ })
			var now, old ticket
			for i, word := range strings.Fields(script) {
				at := fmt.Sprintf("%s: step %d, %s", script, i+1, word)
				switch word {
				case "start":
					old = now
					tk, err := op.beginLife(kindPost, Addr{})
					require.NoError(t, err, at)
					now = tk
				case "start!":
					_, err := op.beginLife(kindPost, Addr{})
					require.ErrorIs(t, err, ErrBusy, at)
				case "finish+", "finish-":
					require.Equal(t, word == "finish+", f.finish(now), at)
				case "old-":
					require.False(t, old.finish(Result{}), at)
					require.False(t, old.hold(), at)
					require.False(t, old.isCanceling(), at)
				case "hold+", "hold-":
					require.Equal(t, word == "hold+", now.hold(), at)
				case "release":
					now.release()
				case "cancel":
					op.Cancel()
				case "marked+", "marked-":
					require.Equal(t, word == "marked+", now.isCanceling(), at)
				case "busy+", "busy-":
					require.Equal(t, word == "busy+", op.Busy(), at)
				case "due":
					f.keep(now)
					now.setDue()
				case "held":
					before := ran
					c.Trigger(0)
					require.Equal(t, before, ran, at)
				case "0", "1":
					before := ran
					require.Equal(t, int(word[0]-'0'), c.Trigger(0), at)
					require.Equal(t, int(word[0]-'0'), ran-before, at)
				default:
					t.Fatalf("unknown step %q", word)
				}
			}
		})
	}
}

func TestOpHoldsHaveALimit(t *testing.T) {
	c, _ := newFake(t, Config{})
	op := c.NewOp(func(*Op, Result) {})
	tk, err := op.beginLife(kindPost, Addr{})
	require.NoError(t, err)
	n := 0
	for tk.hold() {
		n++
	}
	require.Equal(t, 0xffff, n)
	require.True(t, tk.finish(Result{}))
	for range n {
		tk.release()
	}
	c.Trigger(0)
	require.False(t, op.Busy())
}

// isWaitingForLock reports whether a goroutine waits for a mutex in a function of that name.
func isWaitingForLock(function string) bool {
	stacks := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		state, frames, _ := strings.Cut(stack, "\n")
		if strings.Contains(state, "sync.Mutex.Lock") && strings.Contains(frames, function) {
			return true
		}
	}
	return false
}

// TestCancelDuringFinish checks that a Cancel that meets another goroutine which has fixed the
// outcome and not queued it yet returns when it has: a Trigger after it runs the callback.
func TestCancelDuringFinish(t *testing.T) {
	c, f := newFake(t, Config{})
	ran := 0
	op := c.NewOp(func(*Op, Result) { ran++ })
	tk, err := op.beginLife(kindPost, Addr{})
	require.NoError(t, err)
	f.e.Lock() // as the goroutine that finishes the operation does
	require.True(t, tk.hold())
	require.True(t, tk.finish(Result{}))
	canceled := make(chan struct{})
	go func() {
		defer close(canceled)
		op.Cancel()
	}()
	for !isWaitingForLock("cancelTicket") {
		select {
		case <-canceled:
			tk.release()
			f.e.Unlock()
			t.Fatal("Cancel has returned before the operation was queued")
		default:
			runtime.Gosched()
		}
	}
	tk.release()
	f.e.Unlock()
	<-canceled
	c.Trigger(0)
	require.Equal(t, 1, ran)
}

// TestOpRace calls Finish, Cancel, Hold and Release from many goroutines: there is one delivery for
// each life, after the last Release, and no goroutine holds the memory when the callback runs. The
// memory is plain: the race detector watches it.
func TestOpRace(t *testing.T) {
	c, _ := newFake(t, Config{})
	const lives = 500
	buf := make([]byte, 8)
	var wins, delivered atomic.Int64
	op := c.NewOp(func(*Op, Result) {
		buf[0]++ // no other goroutine may access it now
		delivered.Add(1)
	})
	for life := range lives {
		tk, err := op.beginLife(kindPost, Addr{})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for range g {
					if tk.hold() {
						_ = buf[0]
						tk.release()
					}
				}
				switch g {
				case 0:
					if stale, ok := op.markCanceling(); ok && stale.finish(Result{Err: ErrCanceled}) {
						wins.Add(1)
					}
				default:
					if tk.finish(Result{N: int64(g)}) {
						wins.Add(1)
					}
				}
			})
		}
		for wall := time.Now(); delivered.Load() == int64(life); c.Trigger(0) {
			require.Less(t, time.Since(wall), time.Minute, "life %d is not delivered", life)
		}
		wg.Wait()
		require.False(t, tk.hold())
		require.Zero(t, c.Trigger(0))
	}
	require.EqualValues(t, lives, delivered.Load())
	require.EqualValues(t, lives, wins.Load())
}

// TestOpRaceHolders checks a transport that holds the memory while the operation is finished
// elsewhere: delivery follows the last Release, by whichever goroutine.
func TestOpRaceHolders(t *testing.T) {
	c, _ := newFake(t, Config{})
	ran := 0
	buf := make([]byte, 64)
	op := c.NewOp(func(*Op, Result) {
		ran++
		for i := range buf {
			buf[i] = byte(ran)
		}
	})
	lives := long.Or(10, 100)
	for life := range lives {
		tk, err := op.beginLife(kindPost, Addr{})
		require.NoError(t, err)
		var wg sync.WaitGroup
		var mu sync.Mutex // transports write one after the other
		for range 3 {
			wg.Go(func() {
				for tk.hold() {
					mu.Lock()
					buf[life%64]++
					mu.Unlock()
					tk.release()
					runtime.Gosched()
				}
			})
		}
		wg.Go(func() { tk.finish(Result{}) })
		for wall := time.Now(); ran == life; c.Trigger(0) {
			require.Less(t, time.Since(wall), time.Minute, "life %d is not delivered", life)
		}
		wg.Wait()
	}
	require.Equal(t, lives, ran)
}

// TestOpStaleTickets restarts many operations in their callbacks, while other goroutines finish and
// cancel them with tickets of any age.
func TestOpStaleTickets(t *testing.T) {
	c, f := newFake(t, Config{})
	const ops, lives = 8, 100
	var mu sync.Mutex // guards tickets
	var tickets [ops][]ticket
	starts, ends := 0, 0
	start := func(i int, op *Op) {
		tk, err := op.beginLife(kindPost, Addr{})
		require.NoError(t, err)
		starts++
		f.keep(tk) // before another goroutine has the ticket: only an operation that is taken in may be finished by others
		mu.Lock()
		tickets[i] = append(tickets[i], tk)
		mu.Unlock()
	}
	for i := range ops {
		n := 0
		op := c.NewOp(func(op *Op, _ Result) {
			ends++
			if n++; n < lives {
				start(i, op)
			}
		})
		start(i, op)
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	for g := range uint64(3) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 7))
			for !over.Load() {
				mu.Lock()
				of := tickets[r.IntN(ops)]
				tk := of[len(of)-1-r.IntN(min(len(of), 3))]
				mu.Unlock()
				switch r.IntN(3) {
				case 0:
					f.finish(tk)
				case 1:
					tk.op.Cancel()
				case 2:
					if tk.hold() {
						tk.release()
					}
				}
				runtime.Gosched()
			}
		})
	}
	for wall := time.Now(); ends < ops*lives; c.Trigger(0) {
		require.Less(t, time.Since(wall), time.Minute)
	}
	over.Store(true)
	wg.Wait()
	require.Equal(t, starts, ends)
	require.Zero(t, c.Live())
}

func TestOpResult(t *testing.T) {
	c, f := newFake(t, Config{})
	var got Result
	op := c.NewOp(func(op *Op, r Result) {
		require.False(t, op.Busy())
		got = r
	})
	require.NoError(t, c.SendUnexpected(op, fakePeer, 5, []byte("x")))
	require.EqualValues(t, 1, c.Live())
	f.end(op, Result{Err: ErrPeerLost, Fate: NotRun, N: 3})
	require.Equal(t, 1, c.Upper().Queued())
	require.EqualValues(t, 1, c.Live())
	c.Trigger(0)
	require.Zero(t, c.Live())
	var oe *OpError
	require.ErrorAs(t, got.Err, &oe)
	require.Equal(t, OpError{Op: "send unexpected", Addr: fakePeer, Fate: NotRun, Err: ErrPeerLost}, *oe)
	require.EqualValues(t, 3, got.N)

	require.NoError(t, c.RecvExpected(op, fakePeer, 5, nil))
	f.end(op, Result{})
	c.Trigger(0)
	require.NoError(t, got.Err)
	require.Zero(t, got.N, "the result of the former life")
}

// TestOpIsTakenIn checks that the endpoint lists the operation itself, for one life, and that
// neither keeps anything of the other when that has ended.
func TestOpIsTakenIn(t *testing.T) {
	c, f := newFake(t, Config{})
	op := c.NewOp(func(*Op, Result) {})
	require.False(t, ticket{}.isValid())
	require.NoError(t, c.SendUnexpected(op, fakePeer, 5, []byte("x")))
	first := op.ticket()
	require.True(t, first.isValid())
	require.True(t, first.isTakenIn())
	require.Equal(t, []*Op{op}, f.e.ops)
	f.end(op, Result{})
	require.False(t, first.isTakenIn())
	require.Empty(t, f.e.ops)
	require.Zero(t, op.endpointState)
	c.Trigger(0)
	require.NoError(t, c.RecvUnexpected(op))
	require.Same(t, op, f.e.receivers.head)
	require.False(t, first.isTakenIn(), "its next life")
	require.True(t, op.ticket().isTakenIn())
	f.end(op, Result{})
	c.Trigger(0)
}
