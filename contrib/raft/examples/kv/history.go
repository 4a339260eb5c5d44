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

// An operation is the input of one operation in a history.
type operation struct {
	kind            byte // 'r'ead, 'w'rite or 'c'ompare-and-swap
	key             string
	value, expected string // the value that 'w' and 'c' write, and the value that 'c' compares with
}

// An outcome is the output of an operation.
type outcome struct {
	value   string // the value read
	done    bool   // the write was applied
	unknown bool   // the write may take effect at any time after the call
}

// registerModel is porcupine's model of the store. Each key is an independent register whose
// initial value is "".
var registerModel = porcupine.Model{
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
		case is == in.expected:
			return out.done || out.unknown, in.value
		}
		return !out.done, is
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(operation), output.(outcome)
		return fmt.Sprintf("%c %s %q was %q: %+v", in.kind, in.key, in.value, in.expected, out)
	},
}

// A history records the operations of clients and their outcomes.
type history struct {
	start time.Time
	keys  []string

	mu      sync.Mutex // guards the fields below
	ops     []porcupine.Operation
	reads   int
	writes  int
	unknown int
	refused int // number of writes that certainly were not applied, and of failed reads
}

// summary returns the counts of a history as text.
func (h *history) summary() string {
	return fmt.Sprintf("%d writes, %d reads; %d may have happened, %d did not", h.writes, h.reads,
		h.unknown, h.refused)
}

// newHistory returns a history that uses the given number of new keys. Their names contain the
// current time so that no other history uses them.
func newHistory(keys int) *history {
	h := &history{start: time.Now()}
	for i := range keys {
		h.keys = append(h.keys, fmt.Sprintf("%x/%d", h.start.UnixNano(), i))
	}
	return h
}

// ackedWrites returns the number of acknowledged writes.
func (h *history) ackedWrites() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}

// writeLatency describes the latency of the writes that were acknowledged between two times,
// relative to the start of the history.
func (h *history) writeLatency(from, to time.Duration) string {
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
	return fmt.Sprintf(
		"%d writes, median %v, 99 of 100 below %v", len(took),
		took[len(took)/2].Round(time.Millisecond/10), took[len(took)*99/100].Round(time.Millisecond/10),
	)
}

// One written value in largeEvery is large. The log entry of a large value is sent to followers in
// parts, so a fault may occur between two parts. The history holds large values without their
// padding.
const (
	largeEvery = 100
	largeMark  = " large"
	largeSize  = 5 << 18 // in bytes: 1.25 MiB, more than one part of an entry
)

// padding is appended to a value to make it large.
var padding = strings.Repeat("0123456789abcdef", largeSize/16)

// expand returns the value to store for a value in the history.
func expand(value string) string {
	if strings.HasSuffix(value, largeMark) {
		return value + padding
	}
	return value
}

// shorten returns the value that the history holds for a stored value. A damaged value is returned
// unchanged, and equals no value that was written.
func shorten(value string) string {
	if short := strings.TrimSuffix(value, padding); strings.HasSuffix(short, largeMark) && len(short) < len(value) {
		return short
	}
	return value
}

// runClient runs random operations one after another until run is done. Each operation is limited
// to opTimeout.
func (h *history) runClient(run context.Context, id int, c *Client, r *rand.Rand) {
	last := map[string]string{}
	for n := 0; run.Err() == nil; n++ {
		op := operation{
			kind:  "rrwwc"[r.IntN(5)],
			key:   h.keys[r.IntN(len(h.keys))],
			value: fmt.Sprint(id, ".", n),
		}
		op.expected = last[op.key]
		ctx, stop := context.WithTimeout(context.Background(), opTimeout)
		call := time.Since(h.start)
		var out outcome
		var err error
		if op.kind != 'r' && r.IntN(largeEvery) == 0 {
			op.value += largeMark
		}
		expected := expand(op.expected)
		switch op.kind {
		case 'r':
			if r.IntN(2) == 0 {
				c.setLeader("") // try any server: a deposed leader may believe that it still leads
			}
			var got GetOut
			got, err = c.Get(ctx, GetIn{Key: op.key})
			out.value = shorten(got.Value)
			last[op.key] = out.value
		case 'w':
			_, err = c.Put(ctx, PutIn{Key: op.key, Value: expand(op.value)})
			out.done = err == nil
		case 'c':
			_, err = c.Put(ctx, PutIn{Key: op.key, Value: expand(op.value), If: &expected})
			out.done = err == nil
		}
		stop()
		h.record(id, op, out, err, call)
	}
}

// readAll reads each key once.
func (h *history) readAll(c *Client) {
	for _, key := range h.keys {
		ctx, stop := context.WithTimeout(context.Background(), 6*opTimeout)
		call := time.Since(h.start)
		got, err := c.Get(ctx, GetIn{Key: key})
		stop()
		h.record(0, operation{kind: 'r', key: key}, outcome{value: shorten(got.Value)}, err, call)
	}
}

// opTimeout limits one operation.
const opTimeout = 5 * time.Second

// record adds a completed operation to the history.
func (h *history) record(id int, op operation, out outcome, err error, call time.Duration) {
	o := porcupine.Operation{ClientId: id, Input: op, Call: int64(call),
		Return: int64(time.Since(h.start))}
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
	default: // the write may take effect at any time after the call
		h.unknown++
		out.unknown, o.Return = true, math.MaxInt64
	}
	o.Output = out
	h.ops = append(h.ops, o)
}

var errNotLinearizable = errors.New("the history is not linearizable")

// checkLinearizable returns an error unless the history is linearizable, that is, unless a single
// copy of the store that executes one operation at a time could have returned the same answers.
func (h *history) checkLinearizable(timeout time.Duration) error {
	h.mu.Lock()
	ops := slices.Clone(h.ops)
	h.mu.Unlock()
	switch porcupine.CheckOperationsTimeout(registerModel, ops, timeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return errNotLinearizable
	}
	return fmt.Errorf("porcupine needs more than %v for %d operations", timeout, len(ops))
}
