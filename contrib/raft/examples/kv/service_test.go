package main

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// openClient returns a client of a new cluster.
func openClient(t *testing.T) (context.Context, *cluster, *qs.Node, *Client) {
	ctx, stop := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(stop)
	c := newCluster(t, 10*time.Second, nil) // nothing fails here, and a loaded machine is to change no leader
	t.Cleanup(c.close)
	node := openNode(t, "tcp://", c.silence)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	client := NewClient(node, c.addresses)
	client.timeout = patience
	return ctx, c, node, client
}

// TestPutAndGet checks writes, reads, compare and swap, and a deletion; a stale read returns the
// state of its server.
func TestPutAndGet(t *testing.T) {
	t.Parallel()
	ctx, c, node, client := openClient(t)
	one, err := client.Put(ctx, PutIn{Key: "a", Value: "1"})
	require.NoError(t, err)
	two, err := client.Put(ctx, PutIn{Key: "a", Value: "2", If: new("1")})
	require.NoError(t, err)
	require.Greater(t, two, one)
	_, err = client.Put(ctx, PutIn{Key: "a", Value: "3", If: new("1")})
	require.ErrorIs(t, err, errDiffers)
	_, err = client.Put(ctx, PutIn{Key: "b", Value: "3", If: new("1")})
	require.ErrorIs(t, err, errDiffers)
	got, err := client.Get(ctx, GetIn{Key: "a"})
	require.NoError(t, err)
	require.Equal(t, "2", got.Value)
	for _, k := range c.copies {
		peer, err := node.Peer(ctx, k.node.Addr().String())
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			got, err := Get.Call(ctx, peer, GetIn{Key: "a", Stale: true})
			return err == nil && got.Value == "2" && got.Index >= two
		}, patience, 5*time.Millisecond)
	}
	_, err = client.Put(ctx, PutIn{Key: "a", Delete: true})
	require.NoError(t, err)
	got, err = client.Get(ctx, GetIn{Key: "a"})
	require.NoError(t, err)
	require.False(t, got.Found)
}

// TestRedirect checks that a server that is not the leader has done nothing, and names the leader.
func TestRedirect(t *testing.T) {
	t.Parallel()
	ctx, c, node, client := openClient(t)
	require.Eventually(t, func() bool {
		if _, err := client.Put(ctx, PutIn{Key: "a"}); err != nil {
			return false
		}
		leader := c.leader()
		for _, k := range c.copies {
			if k == leader {
				continue
			}
			peer, err := node.Peer(ctx, k.node.Addr().String())
			require.NoError(t, err)
			for _, call := range []func() error{
				func() error { _, err := Put.Call(ctx, peer, PutIn{Key: "a"}); return err },
				func() error { _, err := Get.Call(ctx, peer, GetIn{Key: "a"}); return err },
			} {
				err := call()
				require.ErrorIs(t, err, qs.ErrUnavailable)
				require.Equal(t, qs.NotRun, qs.FateOf(err))
				if to, _ := qs.DetailOf[Redirect](err); to.Leader != leader.node.Addr().String() {
					return false // not known there yet, or another one leads
				}
			}
		}
		return true
	}, patience, 5*time.Millisecond)
}

// TestWatch checks that a watcher of any server gets the changes with its prefix in order, and an
// end when the server ends.
func TestWatch(t *testing.T) {
	t.Parallel()
	ctx, c, node, client := openClient(t)
	_, err := client.Put(ctx, PutIn{Key: "before", Value: "0"})
	require.NoError(t, err)
	k := c.copies[0]
	if k == c.leader() {
		k = c.copies[1]
	}
	peer, err := node.Peer(ctx, k.node.Addr().String())
	require.NoError(t, err)
	changes, failed := make(chan Change, 100), make(chan error, 1)
	go func() {
		for change, err := range Watch.Call(ctx, peer, WatchIn{Prefix: "w/"}) {
			if err != nil {
				failed <- err
				return
			}
			changes <- change
		}
	}()
	require.Eventually(t, func() bool {
		k.store.mu.Lock()
		defer k.store.mu.Unlock()
		return len(k.store.watchers) == 1
	}, patience, time.Millisecond)
	for i := range 20 {
		for _, key := range []string{"w/a", "other"} {
			_, err := client.Put(ctx, PutIn{Key: key, Value: strconv.Itoa(i), Delete: i == 19})
			require.NoError(t, err)
		}
	}
	last := uint64(0)
	for i := range 20 {
		select {
		case got := <-changes:
			require.Equal(t, Change{"w/a", strconv.Itoa(i), i == 19, got.Index}, got)
			require.Greater(t, got.Index, last)
			last = got.Index
		case <-time.After(patience):
			t.Fatal("no change")
		}
	}
	require.NoError(t, k.stop())
	select {
	case err := <-failed:
		require.ErrorIs(t, err, qs.ErrAborted)
	case <-time.After(patience):
		t.Fatal("the watcher continues")
	}
	k.runs = false
	require.NoError(t, k.node.Close())
	<-k.served
}

// TestStop checks that a server that stops answers the requests that it has begun, and refuses
// later ones: raft that has been shut down answers only some.
func TestStop(t *testing.T) {
	t.Parallel()
	ctx, c, _, client := openClient(t)
	_, err := client.Put(ctx, PutIn{Key: "a", Value: "1"})
	require.NoError(t, err)
	_, err = client.Get(ctx, GetIn{Key: "a"}) // its leader has applied everything, and would confirm with raft that it leads
	require.NoError(t, err)
	leader := c.leader()
	stopped, last := make(chan struct{}), make(chan error, 64)
	for i := range cap(last) {
		go func() {
			for begun := true; begun; {
				select {
				case <-stopped:
					begun = false // one more
				default:
				}
				_, err := leader.get(ctx, GetIn{Key: "a"})
				if i%4 == 0 {
					_, err = leader.put(ctx, PutIn{Key: "a", Value: "1"})
				}
				if !begun {
					last <- err
				}
			}
		}()
	}
	leader.runs = false
	require.NoError(t, leader.stop())
	close(stopped)
	for range cap(last) {
		select {
		case err := <-last:
			require.ErrorIs(t, err, qs.ErrUnavailable)
		case <-time.After(patience):
			t.Fatal("a request is not answered")
		}
	}
	require.NoError(t, leader.node.Close())
	<-leader.served
}

// TestSlowWatcher checks that a watcher that does not read is ended, and delays nothing.
func TestSlowWatcher(t *testing.T) {
	s := newStore()
	w, stop := s.watch("")
	defer stop()
	for i := range uint64(maxQueuedChanges + 10) {
		b, err := codec.Msgpack.Append(nil, command{Key: "a"})
		require.NoError(t, err)
		require.Equal(t, result{true, i + 1}, s.Apply(&raft.Log{Index: i + 1, Data: b}))
	}
	n := 0
	for range w.changes {
		n++
	}
	require.Equal(t, maxQueuedChanges, n)
	_, failed := s.Apply(&raft.Log{Index: 5000, Data: []byte{0xc1}}).(error)
	require.True(t, failed, "an entry that cannot be read is an error at every server, and no panic")
}

// TestStoreSnapshot checks that a store that is restored from a snapshot is the same, and its
// watchers end.
func TestStoreSnapshot(t *testing.T) {
	s, sink := newStore(), &memorySink{}
	b, err := codec.Msgpack.Append(nil, command{Key: "a", Value: "1"})
	require.NoError(t, err)
	s.Apply(&raft.Log{Index: 9, Data: b})
	p, err := s.Snapshot()
	require.NoError(t, err)
	s.Apply(&raft.Log{Index: 10, Data: b[:len(b)-1]})
	require.NoError(t, p.Persist(sink))
	p.Release()
	again := newStore()
	w, stop := again.watch("")
	defer stop()
	require.NoError(t, again.Restore(io.NopCloser(&sink.Buffer)))
	value, found, index := again.get("a")
	require.Equal(t, "1", value)
	require.True(t, found)
	require.EqualValues(t, 9, index)
	_, open := <-w.changes
	require.False(t, open)
	require.Error(t, again.Restore(io.NopCloser(bytes.NewReader([]byte("nonsense")))))
}

type memorySink struct{ bytes.Buffer }

func (*memorySink) Close() error  { return nil }
func (*memorySink) Cancel() error { return nil }
func (*memorySink) ID() string    { return "one" }
