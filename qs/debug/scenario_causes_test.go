package debug

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A world is a server and a client with a page about each.
type world struct {
	server, client         *qs.Node
	to                     qs.Peer
	serverPage, clientPage *Page
	ctx                    context.Context // context of the calls of the test
}

// newWorld opens both nodes. Calls in flight at the end of the test are canceled. elapsed is the
// clock of both pages; nil is the usual one.
func newWorld(t *testing.T, cfg qs.Config, elapsed func(time.Time) time.Duration) *world {
	t.Helper()
	w := &world{serverPage: &Page{StalledAfter: 20 * time.Millisecond, elapsed: elapsed}, clientPage: &Page{StalledAfter: 20 * time.Millisecond, elapsed: elapsed}}
	cfg.Name = "kv"
	w.serverPage.Attach(&cfg)
	var err error
	w.server, err = qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(serving) }()
	of := qs.Config{Name: "billing"}
	of.HG.NA.PeerTimeout = cfg.HG.NA.PeerTimeout
	w.clientPage.Attach(&of)
	w.client, err = qs.Open("tcp://", of)
	require.NoError(t, err)
	w.to, err = w.client.Peer(serving, w.server.Addr().String())
	require.NoError(t, err)
	var leave context.CancelFunc
	w.ctx, leave = context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		leave()
		require.NoError(t, w.client.Close())
		stop()
		<-served
	})
	return w
}

// waitForCause waits until the JSON of a page has a cause of that kind with all of the texts, and
// requires that the page shows it.
func (w *world) waitForCause(t *testing.T, p *Page, kind string, texts ...string) Cause {
	t.Helper()
	for {
		s := p.Snapshot(Query{})
		for _, c := range s.Causes {
			if c.Kind == kind && containsAll(c.Text, texts) {
				r := httptest.NewRecorder()
				p.ServeHTTP(r, httptest.NewRequest("GET", "/", nil))
				require.Contains(t, r.Body.String(), "<b>"+kind+"</b>")
				return c
			}
		}
		require.NoError(t, w.ctx.Err(), "no cause %q of %q in %+v", kind, texts, s.Causes)
		runtime.Gosched()
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// requireNoCauses requires that a page has no causes.
func requireNoCauses(t *testing.T, p *Page) {
	t.Helper()
	require.Empty(t, p.Snapshot(Query{}).Causes)
}

var (
	hang   = qs.Define[int, int]("kv/reindex")
	few    = qs.Define[int, int]("kv/scan", qs.MaxConcurrent(2))
	feed   = qs.DefineStream[int, []byte]("kv/feed")
	getKey = qs.Define[int, int]("kv/get")
)

func untilDone(ctx context.Context, _ int) (int, error) {
	<-ctx.Done()
	return 0, context.Cause(ctx)
}

// TestCauseStalledCall checks a call with a handler that hangs: both sides report the method, the
// peer, the age, and the reason of the wait.
func TestCauseStalledCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, qs.Config{}, nil)
	hang.Handle(w.server, untilDone)
	requireNoCauses(t, w.serverPage)
	f := hang.Go(w.ctx, w.to, 1)
	c := w.waitForCause(t, w.serverPage, "stalled", "1 request of kv/reindex", "from billing (127.0.0.1:", "its handler has not answered")
	require.Equal(t, "kv/reindex", c.Method)
	require.NotEmpty(t, w.serverPage.Snapshot(Query{Peer: c.Peer}).Calls.Rows)
	w.waitForCause(t, w.clientPage, "stalled", "1 call of kv/reindex", "to kv (tcp://127.0.0.1:", "the peer has not answered")
	f.Abandon()
	<-f.Done()
	for w.serverPage.Snapshot(Query{}).Calls.Total > 0 {
		require.NoError(t, w.ctx.Err())
	}
	requireNoCauses(t, w.serverPage)
	requireNoCauses(t, w.clientPage)
}

// TestCausePeerOutOfEnvelopes checks a peer that accepts no messages: all of its envelopes are used,
// and messages wait for one at the client.
func TestCausePeerOutOfEnvelopes(t *testing.T) {
	t.Parallel()
	cfg := qs.Config{}
	cfg.HG.MaxActive = 1
	cfg.HG.NA.Envelopes = 4
	w := newWorld(t, cfg, nil)
	hang.Handle(w.server, untilDone)
	for range 10 {
		hang.Go(w.ctx, w.to, 1)
	}
	c := w.waitForCause(t, w.clientPage, "no room at peer", "kv (tcp://127.0.0.1:", "accepts no messages: all 4 envelopes", "messages wait here for one", "The oldest call to it")
	require.Equal(t, w.server.Addr().String(), c.Peer)
}

// TestCauseStuckStream checks a stream that its caller does not read: both sides report it, and the
// server names the peer.
func TestCauseStuckStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, qs.Config{}, nil)
	feed.Handle(w.server, func(_ context.Context, _ int, send func([]byte) error) error {
		for {
			if err := send(make([]byte, 10_000)); err != nil {
				return err
			}
		}
	})
	for _, err := range feed.Call(w.ctx, w.to, 1) {
		require.NoError(t, err)
		w.waitForCause(t, w.serverPage, "stuck stream", "1 stream of kv/feed is stalled: the caller, billing (127.0.0.1:", "has read nothing for", "are buffered")
		w.waitForCause(t, w.clientPage, "stuck stream", "this process has read nothing from kv (tcp://127.0.0.1:", "kv/feed")
		break
	}
}

// TestCauseLimitReached checks a limit that is reached: requests wait, and the limit is named: that
// of the method, of a peer, of the node.
func TestCauseLimitReached(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method *qs.Method[int, int]
		set    func(cfg *qs.Config)
		texts  []string
	}{
		{few, func(*qs.Config) {}, []string{"2 requests of kv/scan wait for a handler to finish", "2 requests are running, the limit of this method (qs.MaxConcurrent)"}},
		{hang, func(cfg *qs.Config) { cfg.HG.MaxActivePerPeer = 2 }, []string{"3 requests of billing (127.0.0.1:", "2 requests are running, the limit for one peer (HG.MaxActivePerPeer); 2 of them are for kv/reindex."}},
		{hang, func(cfg *qs.Config) { cfg.HG.MaxActive = 2 }, []string{"3 requests wait for a handler to finish: 2 requests are running, the limit (HG.MaxActive); 2 of them are for kv/reindex."}},
	} {
		t.Run(c.texts[len(c.texts)-1], func(t *testing.T) {
			t.Parallel()
			var cfg qs.Config
			c.set(&cfg)
			w := newWorld(t, cfg, nil)
			c.method.Handle(w.server, untilDone)
			for range 5 {
				c.method.Go(w.ctx, w.to, 1)
			}
			cause := w.waitForCause(t, w.serverPage, "limit", c.texts...)
			require.NotZero(t, cause.Count)
			require.Equal(t, c.method.Name(), cause.Method)
		})
	}
}

// TestCauseBudgetExhausted checks that a used-up budget for peers is reported, too.
func TestCauseBudgetExhausted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, qs.Config{MaxPeers: 1}, nil)
	getKey.Handle(w.server, func(_ context.Context, in int) (int, error) { return in, nil })
	_, err := getKey.Call(w.ctx, w.to, 1)
	require.NoError(t, err)
	w.waitForCause(t, w.serverPage, "limit", "The memory guaranteed to peers is exhausted", "for 1 peer (qs.Config.MaxPeers)")
}

// TestCauseLeak checks a leak: handles that are never closed grow with each snapshot; handles that
// are closed again do not.
func TestCauseLeak(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	w := newWorld(t, qs.Config{}, func(time.Time) time.Duration { return time.Duration(now.Load()) })
	getKey.Handle(w.server, func(_ context.Context, in int) (int, error) { return in, nil })
	_, err := getKey.Call(w.ctx, w.to, 1)
	require.NoError(t, err)
	var handles []*hg.Handle
	var regions []*bulk.Handle
	grow := func() {
		for range 300 {
			h, err := w.client.HG().Create(w.server.Addr(), hg.HashName(getKey.Name()))
			require.NoError(t, err)
			r, err := bulk.Create(w.client.HG(), bulk.Options{Access: bulk.ReadOnly}, make([]byte, 1))
			require.NoError(t, err)
			handles, regions = append(handles, h), append(regions, r)
		}
	}
	shrink := func(n int) {
		for range n {
			require.NoError(t, handles[0].Close())
			require.NoError(t, regions[0].CloseWait(w.ctx))
			handles, regions = handles[1:], regions[1:]
		}
	}
	defer func() { shrink(len(handles)) }()
	for range 6 { // opened and closed
		grow()
		grow()
		requireNoCauses(t, w.clientPage)
		now.Add(int64(slotTime))
		shrink(600)
		requireNoCauses(t, w.clientPage)
		now.Add(int64(slotTime))
	}
	now.Add(int64(time.Hour))
	for range 5 {
		grow()
		w.clientPage.Snapshot(Query{})
		now.Add(int64(slotTime))
	}
	c := w.waitForCause(t, w.clientPage, "leak", "1501 handles are unused but not closed, and their number has grown by 30 per second in the last 50s; 1501 of them were created for kv/get to kv (tcp://127.0.0.1:", "Close each handle that Create of package hg returns")
	require.Equal(t, 1501, c.Count)
	require.Equal(t, []string{"kv/get", w.server.Addr().String()}, []string{c.Method, c.Peer})
	w.waitForCause(t, w.clientPage, "leak", "registered regions of memory", ". Their total size is about 1.5 KiB; all of the 1000 examined are alike: 1 B each, for peers to read, and no peer has used them.", "package bulk")
}

// TestCauseSlowMethod checks a method that has become slow: both sides compare the last minute with
// the time before.
func TestCauseSlowMethod(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	w := newWorld(t, qs.Config{}, func(time.Time) time.Duration { return time.Duration(now.Load()) })
	var slow atomic.Int64
	getKey.Handle(w.server, func(ctx context.Context, in int) (int, error) {
		if slow.Load() > 0 {
			wait, stop := context.WithTimeout(ctx, time.Duration(slow.Load()))
			defer stop()
			<-wait.Done()
		}
		return in, nil
	})
	call := func() {
		var all []*qs.Future[int]
		for range 40 {
			all = append(all, getKey.Go(w.ctx, w.to, 1))
		}
		for _, f := range all {
			_, err := f.Wait(w.ctx)
			require.NoError(t, err)
		}
		// Observe runs in Trigger
		for w.serverPage.Snapshot(Query{}).Load.Requests.Minute.Count < 40 || w.clientPage.Snapshot(Query{}).Load.Calls.Minute.Count < 40 {
			require.NoError(t, w.ctx.Err())
		}
	}
	begun := time.Now()
	call()
	usual := time.Since(begun) // no call took longer, however slow the machine is
	now.Add(int64(2 * time.Minute))
	slow.Store(int64(8*usual + 100*time.Millisecond))
	call()
	c := w.waitForCause(t, w.serverPage, "slow", "Requests of kv/get are slower than usual: the median was", "in the last minute", "in the 1m0s before", "and 0.667 before")
	require.Equal(t, "kv/get", c.Method)
	w.waitForCause(t, w.clientPage, "slow", "Calls of kv/get are slower than usual")
}

// TestCauseErrors checks failing calls: the share, the code, and the text of the last error.
func TestCauseErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, qs.Config{}, nil)
	getKey.Handle(w.server, func(_ context.Context, in int) (int, error) {
		if in%2 == 1 {
			return 0, qs.Errorf(qs.ErrNotFound, "no key user/%d", in)
		}
		return in, nil
	})
	for i := range 20 {
		_, err := getKey.Call(w.ctx, w.to, i)
		require.Equal(t, i%2 == 1, err != nil)
	}
	w.waitForCause(t, w.serverPage, "errors", "10 of 20 requests of kv/get failed in the last minute, most of them with not found", `the last error text was "no key user/19"`)
	w.waitForCause(t, w.clientPage, "errors", "10 of 20 calls of kv/get", "no key user/19")
}

// TestCauseNotReady checks a node that is not ready, and one that is closed.
func TestCauseNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, qs.Config{}, nil)
	requireNoCauses(t, w.serverPage)
	w.server.SetReady(false)
	w.waitForCause(t, w.serverPage, "not ready", "SetReady(false) was called")
	w.server.SetReady(true)
	requireNoCauses(t, w.serverPage)
	require.NoError(t, w.server.Shutdown(w.ctx))
	w.waitForCause(t, w.serverPage, "not ready", "The node is closed")
}

type putIn struct{ Body qs.Source }

var put = qs.Define[putIn, int64]("kv/put")

// TestProgressOfCall checks that the row of a call that lends memory shows how much of it was
// moved, and the pieces in flight have no rows.
func TestProgressOfCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, qs.Config{}, nil)
	goOn := make(chan struct{})
	read := make(chan struct{})
	put.Handle(w.server, func(ctx context.Context, in putIn) (int64, error) {
		r := in.Body.Reader(ctx)
		if _, err := io.ReadFull(r, make([]byte, 4<<20)); err != nil {
			return 0, err
		}
		close(read)
		<-goOn
		n, err := io.Copy(io.Discard, r)
		return 4<<20 + n, err
	})
	const size = 32 << 20
	f := put.Go(w.ctx, w.to, putIn{qs.Bytes(make([]byte, size))})
	<-read
	for _, p := range []*Page{w.serverPage, w.clientPage} {
		s := p.Snapshot(Query{})
		require.Equal(t, 1, s.Calls.Total)
		c := s.Calls.Rows[0]
		require.Equal(t, "kv/put", c.Method)
		require.EqualValues(t, size, c.Size)
		require.GreaterOrEqual(t, c.Moved, int64(4<<20))
		require.Less(t, c.Moved, int64(size))
		r := httptest.NewRecorder()
		p.ServeHTTP(r, httptest.NewRequest("GET", "/", nil))
		require.Regexp(t, fmt.Sprintf(`<progress value="\d{7,}" max="%d"`, size), r.Body.String())
	}
	close(goOn)
	n, err := f.Wait(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	// Observe runs in Trigger
	for w.serverPage.Snapshot(Query{Method: "kv/put"}).Load.Requests.Minute.Received < size {
		require.NoError(t, w.ctx.Err())
	}
}
