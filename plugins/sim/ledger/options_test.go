package ledger

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// options is everything that a seed draws before its world begins. A literal of it replays a case.
type options struct {
	Seed     uint64
	Level    sim.Level
	NoAssist bool
	Nodes    int           // 2 to 8
	Contexts int           // of each node, at most
	Ops      int           // of all nodes together, at least
	MaxSize  int           // bytes of the largest payload
	Crashes  int           // nodes that crash and are started again
	Closes   int           // classes that are closed in the middle of everything and opened again under their name
	Idle     time.Duration // na.Config.IdleTimeout
	Off      actions
	Faults   sim.Faults
	Planted  bool // the audit fails where a class was closed and a call canceled: for tests of the shrinker
}

// actions is a set of actions of programs besides calling echo.
type actions uint32

const (
	actLater    actions = 1 << iota // answered later
	actNever                        // answered never, or when the world is calm
	actSilent                       // the handler returns without an answer
	actFail                         // the handler fails
	actGrow                         // large output
	actPull                         // the target pulls
	actPush                         // the target pushes
	actRelay                        // the target has a third node pull
	actNote                         // one-way
	actNobody                       // an RPC that is not served
	actLookup                       //
	actCancel                       // of anything
	actSoon                         // cancel after some events
	actWithdraw                     //
	actAbandon                      //
	actClose                        // of handles, in flight or not
	actDeadline                     // timeouts, and cancels that tie with them
	actCallback                     // anything inside callbacks and handlers
	actFree                         // memory is taken back while it is being moved
	actSlow                         // nodes that do not progress for a while
	actFew                          // few handlers at a time
	actDispatch                     // requests are dispatched, and run later, or never
	actWait                         // calls that a coroutine of their own waits for
	actsEnd
)

var actText = [...]string{"later", "never", "silent", "fail", "grow", "pull", "push", "relay", "note", "nobody", "lookup", "cancel",
	"soon", "withdraw", "abandon", "close", "deadline", "callback", "free", "slow", "few", "dispatch", "wait"}

func (a actions) has(what actions) bool { return a&what != 0 }

func (a actions) String() string {
	var all []string
	for i, text := range actText {
		if a.has(1 << i) {
			all = append(all, text)
		}
	}
	return strings.Join(all, "+")
}

// drawOptions draws those of a seed: every kind of act is off in one of four, and every class of
// fault in one of two.
func drawOptions(seed uint64) options {
	r := newRand(seed, 0)
	o := options{Seed: seed, Level: sim.Level(r.IntN(2)), NoAssist: r.IntN(4) == 0}
	o.Faults = sim.Storm().Draw(r)
	o.Nodes = 2 + min(r.IntN(7), r.IntN(7))
	o.Contexts = 1 + r.IntN(3)
	o.Ops = 220
	o.MaxSize = 1 << (10 + min(r.IntN(11), r.IntN(11)))
	o.Crashes = r.IntN(3) * r.IntN(2)
	o.Closes = r.IntN(3) * r.IntN(2)
	o.Off = actions(r.Uint32()&r.Uint32()) & (actsEnd - 1)
	if r.IntN(8) == 0 { // nothing that a peer may be lost of
		f := &o.Faults
		f.Reset, f.Corrupt, f.Clog, f.Pause, f.Partition, f.Loss = 0, 0, 0, 0, 0, 0
		o.NoAssist, o.Crashes, o.Closes = false, 0, 0
	}
	o.Idle = []time.Duration{0, 1, 1, 300 * time.Millisecond}[r.IntN(4)]
	return o
}

// drawLen draws the length of an input or output: some around each size class of room, some that go
// beside their messages.
func drawLen(r *rand.Rand, most int) int {
	n := size(r, most)
	switch k := r.IntN(32); k {
	case 0:
		return na.MaxRoom + n
	case 4:
		return na.MaxRoom + min(8*n, 1<<20)
	case 1, 2, 3:
		return max(min(na.RoomBytes(k), 4*most)-r.IntN(100), 0)
	}
	return n
}

// size draws a length up to most, each power of two as likely as any other.
func size[T int | time.Duration](r *rand.Rand, most T) T {
	n := bits.Len64(uint64(most))
	return min(T(r.Int64N(1<<r.IntN(n+1))), most)
}

func (o *options) String() string { return fmt.Sprintf("%+v", *o) }

// waitedHead is how much longer than a body the input of a call is that a coroutine waits for. The
// order of calls with shorter inputs is checked.
const waitedHead = 128

// The bytes of payloads: those of a token begin at a place in table that depends on it.
var table = func() []byte {
	r := newRand(0, 0)
	b := make([]byte, 4093+waitedHead+na.MaxRoom+1<<20) // the last place, and the longest input
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

// tokenPattern returns the n bytes of a token. They are not to be written.
func tokenPattern(token uint64, n int) []byte {
	at := token * 2654435761 % 4093
	return table[at : at+uint64(n)]
}

// splitRandom cuts b into segments: few of them mostly, up to 64 at times.
func splitRandom(r *rand.Rand, b []byte) [][]byte {
	var segs [][]byte
	n := 1 + r.IntN(6)
	if r.IntN(4) == 0 {
		n = 1 + r.IntN(64)
	}
	for ; n > 1 && len(b) > 1; n-- {
		at := 1 + r.IntN(min(len(b)-1, 1+2*len(b)/n))
		segs = append(segs, b[:at:at])
		b = b[at:]
	}
	return append(segs, b)
}
