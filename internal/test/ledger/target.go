package ledger

import (
	"context"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Site is where origins and targets live: this machine, or a machine of the simulator.
type Site struct {
	Open  func(addr string, cfg qs.Config) (*qs.Node, error)
	Go    func(f func())
	Sleep func(d time.Duration)
}

// A handlerAct is the action of a handler.
type handlerAct uint8

const (
	actEcho   handlerAct = iota
	actPause             // answers later
	actHang              // waits for the end of its context, and returns the error of that
	actFail              // answers with a code
	actPanic             // panics
	actExit              // ends its goroutine
	actRefuse            // does nothing, and refuses
)

var actNames = [...]string{"echo", "pause", "hang", "fail", "panic", "exit", "refuse"}

// An askInput is the input of a call.
type askInput struct {
	ID    ID
	Act   handlerAct
	Pause time.Duration
	Data  []byte
	Lull  slowValue
}

// A slowValue takes its time to be encoded: a call can be taken back right before it leaves.
type slowValue struct{ pause func() }

func (l slowValue) MarshalBinary() ([]byte, error) {
	if l.pause != nil {
		l.pause()
	}
	return nil, nil
}

func (l *slowValue) UnmarshalBinary([]byte) error { return nil }

// A moveInput is an ask that lends.
type moveInput struct {
	Ask  askInput
	From qs.Source // the bytes of the call
	To   qs.Sink   // receives this number of bytes
	N    int
	At   bool // by ReadAt and WriteAt
}

type askAnswer struct {
	ID   ID
	Data []byte
}

// The methods. Those that may be repeated are other ones.
var (
	asks       = qs.Define[askInput, askAnswer]("ledger/ask")
	asksAgain  = qs.Define[askInput, askAnswer]("ledger/ask-again", qs.Idempotent())
	asksInline = qs.Define[askInput, askAnswer]("ledger/ask-inline", qs.Inline())
	moves      = qs.Define[moveInput, askAnswer]("ledger/move")
	movesAgain = qs.Define[moveInput, askAnswer]("ledger/move-again", qs.Idempotent())
	notes      = qs.DefineOneWay[askInput]("ledger/note")
)

// A Target serves them.
type Target struct {
	Site
	Book *Book

	node *qs.Node
	ends atomic.Bool
}

// hangs is how long a handler waits for the end of its context, longer than any deadline of a call.
const hangs = 8 * time.Second

// Serve serves at addr until ctx ends, and calls listening with its address.
func (t *Target) Serve(ctx context.Context, addr string, cfg qs.Config, listening func(addr string)) error {
	n, err := t.Open(addr, cfg)
	if err != nil {
		return err
	}
	t.node = n
	asks.Handle(n, t.handleAsk)
	asksAgain.Handle(n, t.handleAsk)
	asksInline.Handle(n, t.handleAsk)
	moves.Handle(n, t.handleMove)
	movesAgain.Handle(n, t.handleMove)
	notes.Handle(n, func(ctx context.Context, in askInput) { _, _ = t.handleAsk(ctx, in) })
	streamsItems.Handle(n, t.streamItems)
	streamsBytes.Handle(n, t.streamBytes)
	listening(n.Addr().String())
	return n.Serve(ctx)
}

// End announces that the context of Serve is about to end.
func (t *Target) End() { t.ends.Store(true) }

// errEnding is the answer of a handler whose context ended with its target.
var errEnding = qs.Errorf(qs.ErrUnavailable, "the target ends")

func (t *Target) handleAsk(ctx context.Context, in askInput) (askAnswer, error) {
	if in.Act == actRefuse {
		t.Book.addRefused(in.ID)
		return askAnswer{}, qs.Refuse(qs.Errorf(qs.ErrUnavailable, "requested to refuse"))
	}
	t.Book.addRun(in.ID)
	if err := t.runAct(ctx, in); err != nil {
		return askAnswer{}, err
	}
	if !isPattern(in.Data, in.ID, 0) {
		t.Book.addWrong("call %v has wrong bytes in its input", in.ID)
	}
	t.Book.addDone(in.ID)
	return askAnswer{in.ID, in.Data}, nil
}

func (t *Target) runAct(ctx context.Context, in askInput) error {
	switch in.Act {
	case actPause:
		_ = t.node.HG().Sleep(context.Background(), in.Pause)
	case actHang:
		_ = t.node.HG().Sleep(ctx, hangs)
		if t.ends.Load() {
			return errEnding
		}
		return ctx.Err()
	case actFail:
		return qs.Errorf(qs.ErrAborted, "requested to fail")
	case actPanic:
		panic("asked to panic")
	case actExit:
		runtime.Goexit()
	}
	return nil
}

func (t *Target) handleMove(ctx context.Context, in moveInput) (askAnswer, error) {
	id := in.Ask.ID
	t.Book.addRun(id)
	if err := t.runAct(ctx, in.Ask); err != nil {
		return askAnswer{}, err
	}
	if err := t.pullFrom(ctx, in); err != nil {
		return askAnswer{}, err
	}
	if err := t.pushTo(ctx, in); err != nil {
		return askAnswer{}, err
	}
	t.Book.addDone(id)
	return askAnswer{ID: id}, nil
}

// pullFrom reads the source of the caller. The bytes that arrive are right, also when not all of
// them do.
func (t *Target) pullFrom(ctx context.Context, in moveInput) error {
	var got []byte
	var err error
	if n := in.From.Len(); in.At && n >= 0 {
		got = make([]byte, n)
		if _, err = in.From.ReadAt(got, 0); err == io.EOF {
			err = nil
		} else if err != nil {
			return err // got is unspecified
		}
	} else {
		got, err = io.ReadAll(in.From.Reader(ctx))
	}
	if !isPattern(got, in.Ask.ID, 0) {
		t.Book.addWrong("call %v: its target read wrong bytes, among %d (%v)", in.Ask.ID, len(got), err)
	}
	return err
}

func (t *Target) pushTo(ctx context.Context, in moveInput) (err error) {
	if in.N == 0 {
		return nil
	}
	b := make([]byte, in.N)
	fillPattern(b, in.Ask.ID, 0)
	if in.At && in.To.Len() >= 0 {
		_, err = in.To.WriteAt(b, 0)
	} else {
		_, err = in.To.Writer(ctx).Write(b)
	}
	return err
}

// patternAt are the bytes of a call: a piece of another call, or at a wrong place, is noticed.
func patternAt(id ID, i int) byte {
	return byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ byte(uint64(id)*0x9e3779b97f4a7c15>>56)
}

func fillPattern(b []byte, id ID, at int) {
	for i := range b {
		b[i] = patternAt(id, at+i)
	}
}

func isPattern(b []byte, id ID, at int) bool {
	for i, v := range b {
		if v != patternAt(id, at+i) {
			return false
		}
	}
	return true
}
