package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// An operation is the input of one in a history.
type operation struct {
	kind       byte // 'r'ead, 'w'rite, 'c'ompare and swap
	key        string
	value, was string // 'w' and 'c': what is written; 'c': what must be there
}

// An outcome is its output: what was read, or whether it was done. unknown: it may have happened, then or later.
type outcome struct {
	value         string
	done, unknown bool
}

// register is the model of one key, for porcupine: its state is the value, "" at first.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(operation).key
			byKey[key] = append(byKey[key], o)
		}
		var all [][]porcupine.Operation
		for _, ops := range byKey {
			all = append(all, ops)
		}
		return all
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out, is := input.(operation), output.(outcome), state.(string)
		switch {
		case in.kind == 'r':
			return out.value == is, is
		case in.kind == 'w':
			return true, in.value
		case is == in.was:
			return out.done || out.unknown, in.value
		}
		return !out.done, is
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(operation), output.(outcome)
		return fmt.Sprintf("%c %s %q was %q: %+v", in.kind, in.key, in.value, in.was, out)
	},
}

// A history is what clients have done, and what they were answered.
type history struct {
	begin time.Time
	keys  []string

	mu      sync.Mutex // guards the fields below
	ops     []porcupine.Operation
	reads   int
	writes  int
	unknown int
	refused int // certainly not done
}

// A ledger sums a history up.
func (h *history) ledger() string {
	return fmt.Sprintf("%d writes, %d reads; %d may have happened, %d did not", h.writes, h.reads, h.unknown, h.refused)
}

// newHistory returns one of so many keys, which nobody else has.
func newHistory(keys int) *history {
	h := &history{begin: time.Now()}
	for i := range keys {
		h.keys = append(h.keys, fmt.Sprintf("%x/%d", h.begin.UnixNano(), i))
	}
	return h
}

// written returns how many writes were answered.
func (h *history) written() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}

// latency says how long the writes took that were answered from one moment to another since the history began.
func (h *history) latency(from, to time.Duration) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var took []time.Duration
	for _, o := range h.ops {
		if o.Input.(operation).kind != 'r' && o.Return >= int64(from) && o.Return < int64(to) {
			took = append(took, time.Duration(o.Return-o.Call))
		}
	}
	if len(took) == 0 {
		return "no write was answered"
	}
	slices.Sort(took)
	return fmt.Sprintf("%d writes, median %v, 99 of 100 below %v", len(took), took[len(took)/2].Round(time.Millisecond/10), took[len(took)*99/100].Round(time.Millisecond/10))
}

// One of largeEvery values that are written is large: its entry is sent to followers in parts, and a fault may come between two of them. The
// history has such a value without its padding.
const (
	largeEvery = 100
	largeMark  = " large"
	largeSize  = 5 << 18 // bytes: 1.25 MiB, more than one part holds
)

// padding makes a value large.
var padding = strings.Repeat("0123456789abcdef", largeSize/16)

// expand returns the value that the store gets for one of the history.
func expand(value string) string {
	if strings.HasSuffix(value, largeMark) {
		return value + padding
	}
	return value
}

// shorten returns the value of the history for one that was read. One that is damaged equals none that was written.
func shorten(value string) string {
	if short := strings.TrimSuffix(value, padding); strings.HasSuffix(short, largeMark) && len(short) < len(value) {
		return short
	}
	return value
}

// client does operations, one after the other, until run ends. Each has opTimeout.
func (h *history) client(run context.Context, id int, c *Client, r *rand.Rand) {
	last := map[string]string{}
	for n := 0; run.Err() == nil; n++ {
		op := operation{kind: "rrwwc"[r.IntN(5)], key: h.keys[r.IntN(len(h.keys))], value: fmt.Sprint(id, ".", n)}
		op.was = last[op.key]
		ctx, stop := context.WithTimeout(context.Background(), opTimeout)
		call := time.Since(h.begin)
		var out outcome
		var err error
		if op.kind != 'r' && r.IntN(largeEvery) == 0 {
			op.value += largeMark
		}
		was := expand(op.was)
		switch op.kind {
		case 'r':
			if r.IntN(2) == 0 {
				c.lead("") // ask any server: one that led may believe that it does still
			}
			var got GetOut
			got, err = c.Get(ctx, GetIn{Key: op.key})
			out.value = shorten(got.Value)
			last[op.key] = out.value
		case 'w':
			_, err = c.Put(ctx, PutIn{Key: op.key, Value: expand(op.value)})
			out.done = err == nil
		case 'c':
			_, err = c.Put(ctx, PutIn{Key: op.key, Value: expand(op.value), If: &was})
			out.done = err == nil
		}
		stop()
		h.add(id, op, out, err, call)
	}
}

// readAll reads each key once more.
func (h *history) readAll(c *Client) {
	for _, key := range h.keys {
		ctx, stop := context.WithTimeout(context.Background(), 6*opTimeout)
		call := time.Since(h.begin)
		got, err := c.Get(ctx, GetIn{Key: key})
		stop()
		h.add(0, operation{kind: 'r', key: key}, outcome{value: shorten(got.Value)}, err, call)
	}
}

// opTimeout bounds one operation.
const opTimeout = 5 * time.Second

// add notes an operation that has ended.
func (h *history) add(id int, op operation, out outcome, err error, call time.Duration) {
	o := porcupine.Operation{ClientId: id, Input: op, Call: int64(call), Return: int64(time.Since(h.begin))}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && op.kind == 'r':
		h.reads++
	case err == nil, errors.Is(err, errDiffers):
		h.writes++
	case op.kind == 'r', qs.FateOf(err) == qs.NotRun:
		h.refused++
		return
	default: // it may happen at any time from its call on
		h.unknown++
		out.unknown, o.Return = true, math.MaxInt64
	}
	o.Output = out
	h.ops = append(h.ops, o)
}

var errWrong = errors.New("the history is not linearizable")

// check has porcupine decide whether one copy of the store, which does one thing after the other, could have answered so.
func (h *history) check(timeout time.Duration) error {
	h.mu.Lock()
	ops := slices.Clone(h.ops)
	h.mu.Unlock()
	switch porcupine.CheckOperationsTimeout(register, ops, timeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return errWrong
	}
	return fmt.Errorf("porcupine needs more than %v for %d operations", timeout, len(ops))
}
