package request_test

import (
	"os"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/request"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeProgressor is a Progressor for one goroutine. Progress makes the callback that was sent ready; there is at most one.
// Its clock jumps to the end of every wait.
type fakeProgressor struct {
	now         time.Duration
	sent, ready func()
}

func (p *fakeProgressor) Now() time.Duration { return p.now }

func (p *fakeProgressor) Trigger(int) int {
	cb := p.ready
	if cb == nil {
		return 0
	}
	p.ready = nil
	cb()
	return 1
}

func (p *fakeProgressor) Progress(timeout time.Duration) error {
	if p.sent == nil {
		p.now += max(timeout, 0)
		return os.ErrDeadlineExceeded
	}
	p.ready, p.sent = p.sent, nil
	return nil
}

func TestWaitAllocatesNothing(t *testing.T) {
	p := &fakeProgressor{}
	c := request.NewClass(p)
	r, r2 := c.Create(nil), c.Create(nil)
	cb := func() { r.Complete(nil) }
	both := func() { r.Complete(nil); r2.Complete(nil) }
	for _, tt := range []struct {
		name string
		wait func() bool
		want bool
	}{
		{"Wait", func() bool { r.Reset(nil); p.sent = cb; return r.Wait(-1) }, true},
		{"Wait with timeout", func() bool { r.Reset(nil); p.sent = cb; return r.Wait(time.Second) }, true},
		{"Wait that times out", func() bool { r.Reset(nil); return r.Wait(time.Second) }, false},
		{"Wait zero", func() bool { r.Reset(nil); return r.Wait(0) }, false},
		{"WaitAny", func() bool { r.Reset(nil); r2.Reset(nil); p.sent = cb; return request.WaitAny(-1, r2, r) == 1 }, true},
		{"WaitAll", func() bool { r.Reset(nil); r2.Reset(nil); p.sent = both; return request.WaitAll(-1, r, r2) }, true},
	} {
		require.Equal(t, tt.want, tt.wait(), tt.name)
		allocs := testing.AllocsPerRun(100, func() { tt.wait() })
		assert.Zero(t, allocs, tt.name)
	}
}
