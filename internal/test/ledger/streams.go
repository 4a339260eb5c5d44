package ledger

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Streams are open all the time, beside the calls of an origin: as many of each kind as
// Origin.Streams. Their readers are of every speed, and some stop in the middle.
//
//	kind    bytes flow       the reader, which is slow or stops
//	items   to the origin    the loop over the items
//	from    to the target    the handler, which reads the Source
//	into    to the origin    the io.Writer of the Sink

// A sequence is a request for N items.
type sequence struct {
	ID ID
	N  int
}

// A flowInput is the input of a call with a stream of bytes.
type flowInput struct {
	ID   ID
	N    int           // bytes
	Pace time.Duration // how long the handler waits before it reads each piece
	From qs.Source
	To   qs.Sink
}

// An item has Data, which is the piece of the pattern of its call that begins at At.
type item struct {
	At   int
	Data []byte
}

var (
	streamsItems = qs.DefineStream[sequence, item]("ledger/items")
	streamsBytes = qs.Define[flowInput, askAnswer]("ledger/bytes")
)

const (
	itemBytes   = 1000
	flowPiece   = 16 << 10
	stops       = time.Hour // the pace of a reader that stops
	streamLimit = hangs / 2 // the deadline of each call with a stream
)

// paces are the speeds of readers, by the piece.
var paces = []time.Duration{0, time.Millisecond, 50 * time.Millisecond, stops}

func (t *Target) streamItems(_ context.Context, in sequence, send func(item) error) error {
	t.Book.addRun(in.ID)
	b := make([]byte, itemBytes)
	for i := range in.N {
		fillPattern(b, in.ID, i*itemBytes)
		if err := send(item{i * itemBytes, b}); err != nil {
			return err
		}
	}
	t.Book.addDone(in.ID)
	return nil
}

func (t *Target) streamBytes(ctx context.Context, in flowInput) (askAnswer, error) {
	t.Book.addRun(in.ID)
	b := make([]byte, flowPiece)
	if in.From.Len() != 0 {
		r, at := in.From.Reader(ctx), 0
		for {
			if in.Pace > 0 && at > 0 {
				if err := t.node.HG().Sleep(ctx, in.Pace); err != nil {
					return askAnswer{}, err
				}
			}
			n, err := r.Read(b)
			if !isPattern(b[:n], in.ID, at) {
				t.Book.addWrong("stream %v: its target read wrong bytes at %d", in.ID, at)
			}
			if at += n; err == io.EOF {
				break
			} else if err != nil {
				return askAnswer{}, err
			}
		}
		if at != in.N {
			t.Book.addWrong("stream %v: its target read %d bytes of %d", in.ID, at, in.N)
		}
	} else {
		w := in.To.Writer(ctx)
		for at := 0; at < in.N; at += flowPiece {
			fillPattern(b, in.ID, at)
			if _, err := w.Write(b[:min(flowPiece, in.N-at)]); err != nil {
				return askAnswer{}, err
			}
		}
	}
	t.Book.addDone(in.ID)
	return askAnswer{ID: in.ID}, nil
}

// A streamer makes one call with a stream after the other, of one kind and one pace.
type streamer struct {
	*nodeLife
	peer qs.Peer
	kind int
	pace time.Duration
}

// newStreamer returns the i-th of an origin.
func (l *nodeLife) newStreamer(i int) *streamer {
	return &streamer{nodeLife: l, peer: l.peers[i%len(l.peers)], kind: i % 3, pace: paces[i/3%len(paces)]}
}

func (s *streamer) runStreams() {
	for !s.over.Load() {
		if err := s.readItems(); err != nil {
			s.Sleep(10 * time.Millisecond)
		}
	}
}

// now reads the clock of the node.
func (s *streamer) now() time.Duration { return s.node.HG().NA().Now() }

// readItems makes one call, and judges its end.
func (s *streamer) readItems() error {
	var attempts atomic.Int32
	ctx, cancel := s.node.HG().NA().WithTimeout(context.WithValue(context.Background(), attemptsKey{}, &attempts), streamLimit)
	defer cancel()
	begun := s.now()
	in := flowInput{ID: s.id(), N: 40 * flowPiece, Pace: s.pace}
	s.Book.addCall(in.ID, []string{"items", "from", "into"}[s.kind], 1)
	err := s.moveBytes(ctx, in)
	n := 1
	if s.attempts {
		n = int(attempts.Load())
	}
	s.Book.addEnd(in.ID, n, err)
	if text := checkError(err); text != "" {
		s.Book.addWrong("stream %v: %s: %v", in.ID, text, err)
	}
	if took := s.now() - begun; took > streamLimit+s.Patience {
		s.Book.addWrong("stream %v ended %v after its deadline: %v", in.ID, took-streamLimit, err)
	}
	return err
}

// moveBytes moves the bytes of a stream.
func (s *streamer) moveBytes(ctx context.Context, in flowInput) error {
	switch s.kind {
	case 0:
		const n = 400
		got := 0
		for it, err := range streamsItems.Call(ctx, s.peer, sequence{in.ID, n}) {
			if err != nil {
				return err
			}
			if it.At != got || !isPattern(it.Data, in.ID, got) {
				s.Book.addWrong("stream %v: a wrong item at %d", in.ID, got)
			}
			got += len(it.Data)
			s.pauseReader(ctx)
		}
		if got != n*itemBytes {
			s.Book.addWrong("stream %v: %d bytes came of %d", in.ID, got, n*itemBytes)
		}
		return nil
	case 1:
		in.From = qs.Reader(&flowReader{id: in.ID, left: in.N})
	default:
		w := &flowWriter{s: s, id: in.ID, ctx: ctx}
		in.Pace, in.To = 0, qs.Writer(w)
		_, err := streamsBytes.Call(ctx, s.peer, in)
		if got := w.got.Load(); err == nil && got != int64(in.N) {
			s.Book.addWrong("stream %v: %d bytes were written of %d", in.ID, got, in.N)
		}
		return err
	}
	_, err := streamsBytes.Call(ctx, s.peer, in)
	return err
}

// pauseReader pauses the reader between two pieces.
func (s *streamer) pauseReader(ctx context.Context) {
	if s.pace > 0 {
		_ = s.node.HG().Sleep(ctx, s.pace)
	}
}

// A flowReader gives the bytes of a stream.
type flowReader struct {
	id       ID
	at, left int
}

func (r *flowReader) Read(p []byte) (int, error) {
	n := min(len(p), r.left)
	if n == 0 && r.left == 0 {
		return 0, io.EOF
	}
	fillPattern(p[:n], r.id, r.at)
	r.at, r.left = r.at+n, r.left-n
	return n, nil
}

// A flowWriter checks them.
type flowWriter struct {
	s   *streamer
	id  ID
	ctx context.Context
	got atomic.Int64
}

func (w *flowWriter) Write(p []byte) (int, error) {
	if !isPattern(p, w.id, int(w.got.Load())) {
		w.s.Book.addWrong("stream %v: its writer gets wrong bytes at %d", w.id, w.got.Load())
	}
	w.got.Add(int64(len(p)))
	w.s.pauseReader(w.ctx)
	return len(p), w.ctx.Err()
}

// pingLimit is how long a ping of the spared target may take, on a busy machine.
const pingLimit = 5 * time.Second

// pingSpared calls the spared target all the time: it must answer whatever streams and calls there are.
func (l *nodeLife) pingSpared() {
	for !l.over.Load() {
		ctx, cancel := l.node.HG().NA().WithTimeout(context.Background(), pingLimit)
		_, err := l.peers[0].Ping(ctx)
		cancel()
		if err != nil && !l.over.Load() && !errors.Is(err, hg.ErrClosed) {
			l.Book.addWrong("a ping of the spared target: %v", err)
		}
		l.Sleep(5 * time.Millisecond)
	}
}
