package hg

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestWatchIsBounded checks that a program keeps a limited number of the names that peers call.
func TestWatchIsBounded(t *testing.T) {
	var w activityWatch
	var a inspect.Activity
	w.startCounting(0, &a)
	for i := range 5000 {
		w.countEvent(1, &inspect.Event{Kind: inspect.EventTarget, RPC: fmt.Sprint(i), Peer: na.MakeAddr(fmt.Sprintf("tcp://10.0.0.1:%d", i+1), 0), Code: na.ErrNoMethod, Took: time.Second})
	}
	a = inspect.Activity{}
	w.startCounting(2, &a)
	require.Len(t, a.Methods, 257)
	require.Len(t, a.Traffic, 1025)
	sum := int64(0)
	for _, m := range a.Methods {
		sum += m.Count
		require.Equal(t, map[int]int64{inspect.TimeBucket(time.Second): m.Count}, m.Times)
	}
	require.EqualValues(t, 5000, sum)
}

// TestWatchEnds checks that ended requests are not counted any more when the counts have not been
// read for long.
func TestWatchEnds(t *testing.T) {
	var w activityWatch
	var a inspect.Activity
	e := &inspect.Event{RPC: "x", Peer: na.MakeAddr("tcp://10.0.0.1:1", 0)}
	w.startCounting(0, &a)
	w.countEvent(15*time.Second, e)
	w.startCounting(15*time.Second, &a)
	require.EqualValues(t, 1, a.Methods[0].Count)
	require.Equal(t, 15*time.Second, a.Watched)
	require.True(t, w.on.Load())
	w.countEvent(30*time.Second+1, e)
	require.False(t, w.on.Load())
	a = inspect.Activity{}
	w.startCounting(31*time.Second, &a)
	require.Empty(t, a.Methods)
	require.Zero(t, a.Watched)
	w.startCounting(60*time.Second, &a) // nothing has ended meanwhile, and the counts were not read
	require.Zero(t, a.Watched)
}

// TestWatchBeginsMeanwhile checks that a request that arrived before the watch is not counted, also
// in the record of one that was.
func TestWatchBeginsMeanwhile(t *testing.T) {
	c := &Context{class: &Class{}}
	s := &service{ctx: c, event: inspect.Event{Kind: inspect.EventTarget}}
	s.observeArrivalLocked()
	c.watch.on.Store(true)
	s.observeBeginLocked()
	require.Zero(t, s.event.Queued)
	s.postObservedLocked() // would need a clock
}
