package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A ledger is what a worker knows of its keys, which nobody else writes: the values that a read may return.
type ledger struct {
	may  map[string][]string // the last one that was acknowledged, or read, first; then those of which nobody knows
	puts int
	gets int
	errs int
	last error // of the operations that failed
}

// check takes in what a read has returned, and says what is wrong with it.
func (l *ledger) check(key, value string) error {
	may := l.may[key]
	if len(may) == 0 {
		may = []string{""}
	}
	for i, v := range may {
		if v == value {
			l.may[key] = append([]string{v}, may[i+1:]...) // it is at a quorum: nothing older comes back
			return nil
		}
	}
	return fmt.Errorf("%s is %.40q, want one of %.80q", key, value, may)
}

// put takes in how a write has ended.
func (l *ledger) put(key, value string, err error) {
	switch {
	case err == nil:
		l.may[key] = []string{value}
	case qs.FateOf(err) != qs.NotRun:
		if len(l.may[key]) == 0 {
			l.may[key] = []string{""}
		}
		l.may[key] = append(l.may[key], value)
	}
}

// A worker writes and reads its keys, and checks every answer.
type worker struct {
	c       *Client
	name    string
	keys    int
	large   int // bytes of one value in eight
	timeout time.Duration
	rand    *rand.Rand
	ledger  ledger
}

// step makes one operation. The error says that an answer was wrong.
func (w *worker) step(ctx context.Context) error {
	key := fmt.Sprintf("%s/%d", w.name, w.rand.IntN(w.keys))
	ctx, stop := w.c.node.HG().NA().WithTimeout(ctx, w.timeout)
	defer stop()
	var err error
	if w.rand.IntN(2) == 0 {
		value := fmt.Sprintf("%s=%d", key, w.ledger.puts)
		if w.large > 0 && w.rand.IntN(8) == 0 {
			value += string(filler(value, w.large))
		}
		w.ledger.puts++
		err = w.c.Put(ctx, key, []byte(value))
		w.ledger.put(key, value, err)
	} else {
		err = w.read(ctx, key)
	}
	if err != nil {
		if _, wrong := err.(wrongAnswer); wrong {
			return err
		}
		w.ledger.errs++
		w.ledger.last = err
	}
	return nil
}

type wrongAnswer struct{ error }

func (w *worker) read(ctx context.Context, key string) error {
	w.ledger.gets++
	value, _, err := w.c.Get(ctx, key)
	if err != nil {
		return err
	}
	if err := w.ledger.check(key, string(value)); err != nil {
		return wrongAnswer{err}
	}
	return nil
}

// audit reads every key.
func (w *worker) audit(ctx context.Context) error {
	for i := range w.keys {
		for { // a key that nobody can read now is not checked by that
			one, stop := w.c.node.HG().NA().WithTimeout(ctx, w.timeout)
			err := w.read(one, fmt.Sprintf("%s/%d", w.name, i))
			stop()
			if _, wrong := err.(wrongAnswer); err == nil || wrong || ctx.Err() != nil {
				if err != nil {
					return err
				}
				break
			}
			if err := w.c.node.HG().Sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// filler returns n bytes that follow from a text.
func filler(text string, n int) []byte {
	sum := sha256.Sum256([]byte(text))
	out := make([]byte, n)
	x := binary.LittleEndian.Uint64(sum[:])
	for i := range out {
		x = x*6364136223846793005 + 1442695040888963407
		out[i] = 'a' + byte(x>>60)
	}
	return bytes.TrimSpace(out)
}
