package raftqs

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestPipelineOrder checks that many requests arrive in order, and their futures complete in order,
// with their own responses.
func TestPipelineOrder(t *testing.T) {
	eachTransport(t, Options{MaxInFlight: 8}, func(t *testing.T, from, to *Transport) {
		next := uint64(1)
		answerRequests(t, to, func(rpc raft.RPC) (any, error) {
			r := rpc.Command.(*raft.AppendEntriesRequest)
			ok := r.Entries[0].Index == next
			next++
			return &raft.AppendEntriesResponse{Success: ok, LastLog: r.Entries[0].Index}, nil
		})
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		defer p.Close()
		const n = 500
		sent := make(chan raft.AppendFuture, n)
		failed := make(chan error, 1)
		go func() {
			defer close(failed)
			for i := range uint64(n) {
				f, err := p.AppendEntries(newEntries(i+1, 1, 100), &raft.AppendEntriesResponse{})
				if err != nil {
					failed <- err
					return
				}
				sent <- f
			}
		}()
		for i := range uint64(n) {
			f := receive(t, p.Consumer())
			require.NoError(t, f.Error())
			require.EqualValues(t, i+1, f.Response().LastLog)
			require.True(t, f.Response().Success)
			require.Same(t, receive(t, sent), f)
			require.EqualValues(t, i+1, f.Request().Entries[0].Index)
			require.WithinDuration(t, time.Now(), f.Start(), time.Hour)
		}
		require.NoError(t, receive(t, failed))
	})
}

// TestPipelineWindow checks that MaxInFlight requests are sent without a response, and the call
// that sends the last of them blocks until there is one.
func TestPipelineWindow(t *testing.T) {
	for _, window := range []int{2, 3, 10} {
		o := Options{MaxInFlight: window}
		t.Run("", func(t *testing.T) {
			eachTransport(t, o, func(t *testing.T, from, to *Transport) {
				p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
				require.NoError(t, err)
				defer p.Close()
				for i := range window - 1 {
					_, err := p.AppendEntries(newEntries(uint64(i+1), 1, 1), &raft.AppendEntriesResponse{})
					require.NoError(t, err)
				}
				sent := make(chan error, 1)
				go func() {
					_, err := p.AppendEntries(newEntries(uint64(window), 1, 1),
						&raft.AppendEntriesResponse{})
					sent <- err
				}()
				rpc := receive(t, to.Consumer())
				inFlight := func() int {
					p := p.(*pipeline)
					p.mu.Lock()
					defer p.mu.Unlock()
					return len(p.inFlight)
				}
				require.Eventually(t, func() bool { return inFlight() == window }, patience,
					time.Millisecond)
				require.Empty(t, sent)
				select { // one at a time: the second is not delivered before the first is answered
				case <-to.Consumer():
					t.Fatal("two requests of one pipeline at once")
				default:
				}
				rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
				require.NoError(t, receive(t, sent))
			})
		})
	}
}

// TestNoPipeline checks that with MaxInFlight 1 there is no pipeline, and the error is the one that
// raft expects.
func TestNoPipeline(t *testing.T) {
	from, to := openPair(t, "tcp", Options{MaxInFlight: 1})
	_, err := from.AppendEntriesPipeline("to", to.LocalAddr())
	require.Equal(t, raft.ErrPipelineReplicationNotSupported, err)
}

// TestPipelineClose checks that Close fails the requests in flight and those that are blocked, and
// may be called again.
func TestPipelineClose(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		f, err := p.AppendEntries(newEntries(1, 1, 1), &raft.AppendEntriesResponse{})
		require.NoError(t, err)
		blocked := make(chan error, 1)
		go func() {
			_, err := p.AppendEntries(newEntries(2, 1, 1), &raft.AppendEntriesResponse{})
			blocked <- err
		}()
		require.NoError(t, p.Close())
		require.ErrorIs(t, receive(t, blocked), raft.ErrPipelineShutdown)
		require.ErrorIs(t, f.Error(), raft.ErrPipelineShutdown)
		require.NoError(t, p.Close())
		_, err = p.AppendEntries(newEntries(3, 1, 1), &raft.AppendEntriesResponse{})
		require.ErrorIs(t, err, raft.ErrPipelineShutdown)
	})
}

// A closingProvider returns the address of a server, and closes a Transport with its n-th answer.
type closingProvider struct {
	to *Transport
	n  int
	t  *Transport
}

func (c *closingProvider) ServerAddr(raft.ServerID) (raft.ServerAddress, error) {
	if c.n--; c.n == 0 {
		_ = c.t.Close()
	}
	return c.to.LocalAddr(), nil
}

// TestPipelineTransportCloses checks that a Transport that closes while a pipeline begins ends it;
// the race detector covers the other goroutine.
func TestPipelineTransportCloses(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		from.opts.Addresses = &closingProvider{to, 2, from}
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr()) // from now on the address is cached, and closed is not checked
		require.NoError(t, err)
		defer p.Close()
		if p, err = from.AppendEntriesPipeline("to", to.LocalAddr()); err == nil {
			var f raft.AppendFuture
			if f, err = p.AppendEntries(newEntries(1, 1, 1), &raft.AppendEntriesResponse{}); err == nil {
				err = f.Error()
			}
			require.NoError(t, p.Close())
		}
		require.ErrorIs(t, err, raft.ErrTransportShutdown)
	})
}

// TestPipelineEndsWithinRequest checks that a request that is sent in parts, of which the follower
// has answered one when the pipeline ends, has not succeeded: raft looks at the response of a
// future only, and would commit entries that the follower does not have.
func TestPipelineEndsWithinRequest(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		defer p.Close()
		f, err := p.AppendEntries(newEntries(1, 2, maxRequest), &raft.AppendEntriesResponse{})
		require.NoError(t, err)
		first := receive(t, to.Consumer())
		require.Len(t, first.Command.(*raft.AppendEntriesRequest).Entries, 1)
		first.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
		receive(t, to.Consumer()) // the response has left
		q := p.(*pipeline)
		require.Eventually(t, func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return f.(*appendFuture).missing == 1
		}, patience, time.Millisecond)
		from.Disconnect(to.LocalAddr())
		require.Same(t, f, receive(t, p.Consumer()))
		require.Error(t, f.Error())
		require.False(t, f.Response().Success)
	})
}

// TestPipelineOverdue checks that a request that gets no response in time ends its pipeline,
// together with the next request.
func TestPipelineOverdue(t *testing.T) {
	eachTransport(t, Options{Timeout: 50 * time.Millisecond}, func(t *testing.T, from, to *Transport) {
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		defer p.Close()
		if _, err = p.AppendEntries(newEntries(1, 1, 1), &raft.AppendEntriesResponse{}); err != nil { // until then it has blocked
			require.ErrorIs(t, err, qs.ErrTimeout)
		}
		first := receive(t, p.Consumer())
		require.ErrorIs(t, first.Error(), qs.ErrTimeout)
		require.ErrorContains(t, first.Error(), "no response for 50ms")
		_, err = p.AppendEntries(newEntries(2, 1, 1), &raft.AppendEntriesResponse{})
		require.ErrorIs(t, err, qs.ErrTimeout)
	})
}

// TestPipelineErrorOfRaft checks that an error of raft ends the pipeline, and the futures complete
// with it.
func TestPipelineErrorOfRaft(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) { return nil, raft.ErrRaftShutdown })
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		defer p.Close()
		f, err := p.AppendEntries(newEntries(1, 1, 1), &raft.AppendEntriesResponse{})
		require.NoError(t, err)
		require.Same(t, f, receive(t, p.Consumer()))
		require.ErrorContains(t, f.Error(), raft.ErrRaftShutdown.Error())
	})
}

// TestPipelineUnread checks that futures that are not consumed block the pipeline, and Close ends
// it all the same.
func TestPipelineUnread(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) {
			return &raft.AppendEntriesResponse{Success: true},
				nil
		})
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		ended := make(chan int, 1)
		go func() {
			n := 0
			for ; ; n++ {
				if _, err := p.AppendEntries(newEntries(uint64(n+1), 1, 1),
					&raft.AppendEntriesResponse{}); err != nil {
					break
				}
			}
			ended <- n
		}()
		require.Eventually(t, func() bool {
			return len(p.Consumer()) == cap(p.Consumer()) &&
				len(p.(*pipeline).window) == 2
		}, patience, time.Millisecond)
		require.NoError(t, p.Close())
		require.LessOrEqual(t, receive(t, ended), 5)
	})
}

// TestPipelineSpills checks that futures that raft did not consume in time are delivered in order
// when it does, although nothing is sent then.
func TestPipelineSpills(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) {
			return &raft.AppendEntriesResponse{Success: true},
				nil
		})
		p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
		require.NoError(t, err)
		defer p.Close()
		for i := range uint64(3) { // two for Consumer, and one that waits for that
			f, err := p.AppendEntries(newEntries(i+1, 1, 1), &raft.AppendEntriesResponse{})
			require.NoError(t, err)
			require.NoError(t, f.Error())
		}
		for i := range uint64(3) {
			require.Equal(t, i+1, receive(t, p.Consumer()).Request().Entries[0].Index)
		}
	})
}

// TestPipelineBadFrames checks that bytes that are not of this protocol end the call with
// ErrBadInput, and raft gets nothing.
func TestPipelineBadFrames(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"length":  {0xff, 0xff, 0xff, 0xff},
		"request": {0, 0, 0, 3, 1, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
				h, err := from.node.HG().Create(to.node.Addr(), from.pipelineID)
				require.NoError(t, err)
				require.NoError(t, h.SetStreams(pipelineStreams...))
				ended := make(chan error, 1)
				require.NoError(t, h.Forward(nil, func(h *hg.Handle, err error) {
					ended <- err
					_ = h.Close()
				}))
				_, err = h.Stream(0).WriteContext(t.Context(), bytes)
				require.NoError(t, err)
				require.ErrorIs(t, receive(t, ended), qs.ErrBadInput)
			})
		})
	}
}

// TestPipelineBadStreams checks that a call without the streams of a pipeline ends with
// ErrBadInput, and not with a panic of the handler.
func TestPipelineBadStreams(t *testing.T) {
	for name, streams := range map[string][]hg.StreamSpec{
		"none": nil, "one": {{Up: true, Bulk: true}}, "swapped": {{}, {Up: true}},
		"both up": {{Up: true}, {Up: true}},
	} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
				h, err := from.node.HG().Create(to.node.Addr(), from.pipelineID)
				require.NoError(t, err)
				require.NoError(t, h.SetStreams(streams...))
				ended := make(chan error, 1)
				require.NoError(t, h.Forward(nil, func(h *hg.Handle, err error) {
					ended <- err
					_ = h.Close()
				}))
				require.ErrorIs(t, receive(t, ended), qs.ErrBadInput)
			})
		})
	}
}

// TestPipelineEnds checks that a leader that sends no more ends the call without an error, and
// within a request with one.
func TestPipelineEnds(t *testing.T) {
	eachTransport(t, Options{}, func(t *testing.T, from, to *Transport) {
		for _, sent := range [][]byte{nil, {0, 0, 0, 3, 1}} {
			h, err := from.node.HG().Create(to.node.Addr(), from.pipelineID)
			require.NoError(t, err)
			require.NoError(t, h.SetStreams(pipelineStreams...))
			ended := make(chan error, 1)
			require.NoError(t, h.Forward(nil, func(h *hg.Handle, err error) {
				ended <- err
				_ = h.Close()
			}))
			_, err = h.Stream(0).WriteContext(t.Context(), sent)
			require.NoError(t, err)
			h.Stream(0).CloseWrite()
			if err = receive(t, ended); len(sent) == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, qs.ErrBadInput)
			}
		}
	})
}

// TestPipelineAuthorizePanics checks that an Authorize that panics ends the pipeline, as it does a
// call, and not the process; the node continues.
func TestPipelineAuthorizePanics(t *testing.T) {
	o := Options{Authorize: func(id raft.ServerID, _ qs.Caller) error {
		if id == "strange" {
			panic("out of order")
		}
		return nil
	}}
	eachTransport(t, o, func(t *testing.T, from, to *Transport) {
		answerRequests(t, to, func(raft.RPC) (any, error) {
			return &raft.AppendEntriesResponse{Success: true},
				nil
		})
		for _, id := range []string{"strange", "from"} {
			p, err := from.AppendEntriesPipeline("to", to.LocalAddr())
			require.NoError(t, err)
			request := newEntries(1, 1, 1)
			request.ID = []byte(id)
			f, err := p.AppendEntries(request, &raft.AppendEntriesResponse{})
			require.NoError(t, err)
			if err = f.Error(); id == "strange" {
				require.ErrorIs(t, err, hg.ErrPanic)
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, p.Close())
		}
	})
}
