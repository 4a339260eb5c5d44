//go:build linux

package proctest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// The example of the GER paper: 128 processes, 32 envelopes for each, messages of 1 KiB.
const (
	gerPeers     = 128
	gerEnvelopes = 32
	gerEager     = 1024
	guaranteed   = gerPeers * (gerEnvelopes + na.ExpeditedEnvelopes) * (gerEager + na.EnvelopeOverhead)
	budgetEnv    = "QUICKSILVER_TEST_BUDGET"
)

func init() { roles["holder"] = runHolder }

// holderReport is the report of a holder about its messages and memory.
type holderReport struct {
	Stats    na.Stats
	Peers    int
	Fullest  int   // most messages held of one peer
	Resident int64 // memory of its own
	Shared   int64 // of peers and of files
	Heap     int64
}

// runHolder is a target that takes in nothing: what arrives stays in its envelopes. It answers each
// line with a held.
func runHolder() error {
	budget, err := strconv.ParseInt(os.Getenv(budgetEnv), 10, 64)
	if err != nil {
		return err
	}
	cls, err := na.Open(os.Getenv(listenEnv), na.Config{
		Envelopes: gerEnvelopes, Eager: gerEager, Peers: gerPeers, Budget: budget,
	})
	if err != nil {
		return err
	}
	nctx, err := cls.NewContext()
	if err != nil {
		return err
	}
	fmt.Println(cls.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		debug.FreeOSMemory()
		h := holderReport{Stats: nctx.Stats()}
		h.Resident, h.Shared = residentMemory()
		for _, p := range nctx.Peers() {
			h.Peers++
			h.Fullest = max(h.Fullest, p.HeldMax)
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		h.Heap = int64(m.HeapAlloc)
		b, err := json.Marshal(h)
		if err != nil {
			return err
		}
		fmt.Println(string(b))
	}
	return nil
}

// residentMemory is the memory of this process that is in use, in bytes: its own, and what it shares.
func residentMemory() (own, shared int64) {
	var size, pages, both int64
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &size, &pages, &both)
	}
	if err != nil {
		return -1, -1
	}
	page := int64(os.Getpagesize())
	return (pages - both) * page, both * page
}

func (p *process) readHeld() (h holderReport) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in)
	require.NoError(p.t, err)
	require.NoError(p.t, json.Unmarshal([]byte(p.readLine()), &h))
	return h
}

// A sender is a process with messages for the holder.
type sender struct {
	t     *testing.T
	cls   *na.Class
	nctx  *na.Context
	to    na.Addr
	ended int
	fail  error
}

func newSender(t *testing.T, tr transport, p *process) *sender {
	t.Helper()
	cls, err := na.Open(tr.origin, na.Config{})
	require.NoError(t, err)
	nctx, err := cls.NewContext()
	require.NoError(t, err)
	to, err := na.ParseAddr(p.Addr)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, cls.Close()) // the last message is not received: it is not waited for
		require.NoError(t, nctx.Shutdown(ctx))
	})
	return &sender{t: t, cls: cls, nctx: nctx, to: to}
}

func (s *sender) handleEnd(_ *na.Op, r na.Result) {
	s.ended++
	s.fail = r.Err
}

func (s *sender) send(n int) {
	s.t.Helper()
	message := make([]byte, gerEager)
	for range n {
		require.NoError(s.t, s.nctx.SendUnexpected(s.nctx.NewOp(s.handleEnd), s.to, 1, message))
	}
}

// driveUntil drives s.
func (s *sender) driveUntil(done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		require.True(s.t, time.Now().Before(end), "nothing happened for a minute: %+v", s.nctx.Stats())
		_ = s.nctx.Progress(10 * time.Millisecond)
		s.nctx.Trigger(0)
	}
}

// connect makes the connection and sends nothing over it.
func (s *sender) connect() {
	s.t.Helper()
	op := s.nctx.NewOp(s.handleEnd)
	require.NoError(s.t, s.nctx.RecvExpected(op, s.to, 1, nil))
	s.driveUntil(func() bool { return s.ended > 0 || s.nctx.Stats().Peers > 0 })
	op.Cancel()
	s.driveUntil(func() bool { return s.ended > 0 })
	require.ErrorIs(s.t, s.fail, na.ErrCanceled)
	s.ended = 0
}

// TestGERExample checks that 128 peers each hold 32 messages of 1 KiB at a process that accepts
// none (requirements G2, G6, G8, G9): all are held, the 33rd of each stops at its source, the gauge
// is exact, and memory is that of the guarantee, and over sm that of the peers' rings. A 129th peer
// gets the rest of the budget.
func TestGERExample(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, guaranteed, na.GuaranteedBytes(gerPeers, gerEnvelopes, gerEager))
	eachCostly(t, func(t *testing.T, tr transport) {
		t.Parallel()
		for _, spare := range []int{0, 3} { // envelopes for a 129th
			t.Run(fmt.Sprintf("spare %d", spare), func(t *testing.T) { testGERExample(t, tr, spare) })
		}
	})
}

func testGERExample(t *testing.T, tr transport, spare int) {
	t.Parallel()
	budget := int64(guaranteed)
	if spare > 0 {
		budget += na.GuaranteedBytes(1, spare, gerEager)
	}
	p := startRole(t, "holder", listenEnv+"="+tr.listenAddr(), fmt.Sprintf("%s=%d", budgetEnv, budget))
	senders := make([]*sender, gerPeers)
	for i := range senders {
		senders[i] = newSender(t, tr, p)
		senders[i].connect()
	}
	before := p.readHeld()
	require.Equal(t, gerPeers, before.Peers)
	require.EqualValues(t, guaranteed, before.Stats.Reserved, "reserved before the first message")
	for _, s := range senders {
		s.send(gerEnvelopes + 1)
		s.driveUntil(func() bool { return s.ended == gerEnvelopes })
		require.NoError(t, s.fail)
	}
	var now holderReport
	for end := time.Now().Add(time.Minute); now.Stats.Envelopes < gerPeers*gerEnvelopes && time.Now().Before(end); {
		now = p.readHeld()
	}
	require.Equal(t, gerPeers*gerEnvelopes, now.Stats.Envelopes, "all are held")
	require.Equal(t, gerEnvelopes, now.Fullest)
	require.EqualValues(t, guaranteed, now.Stats.Reserved)
	require.Zero(t, now.Stats.Violations)
	for _, s := range senders {
		require.Equal(t, 1, s.nctx.Stats().Queued, "the 33rd stops at its source")
		require.Equal(t, gerEnvelopes, s.ended)
	}
	t.Logf("guaranteed %d bytes; the heap grew by %d (%.2f), resident memory by %d (%.2f), shared by %d (%.2f)", guaranteed,
		now.Heap-before.Heap, float64(now.Heap-before.Heap)/guaranteed,
		now.Resident-before.Resident, float64(now.Resident-before.Resident)/guaranteed,
		now.Shared-before.Shared, float64(now.Shared-before.Shared)/guaranteed)
	require.Less(t, now.Heap-before.Heap, int64(guaranteed*3/2))
	if !raceflag.Enabled {
		require.Less(t, now.Resident-before.Resident, int64(guaranteed*2)) // the collector has garbage of its own there, more on a busy machine
		require.Less(t, now.Shared-before.Shared, int64(guaranteed*3/2))
	}

	late := newSender(t, tr, p)
	late.send(spare + 1)
	if spare == 0 {
		late.driveUntil(func() bool { return late.ended == 1 })
		require.ErrorIs(t, late.fail, na.ErrUnreachable)
		require.ErrorContains(t, late.fail, fmt.Sprintf("have 0 with 0 of %d bytes left (na.Config.Budget)", guaranteed))
	} else {
		late.driveUntil(func() bool { return late.ended == spare && late.nctx.Stats().Peers == 1 })
		require.NoError(t, late.fail)
		require.Equal(t, 1, late.nctx.Stats().Queued)
	}
	now = p.readHeld()
	require.EqualValues(t, budget, now.Stats.Reserved)
	require.Equal(t, gerEnvelopes, now.Fullest, "the guarantees of the others are untouched")
}
