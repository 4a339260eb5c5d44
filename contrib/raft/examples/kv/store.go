package main

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A command is what an entry of the log does.
type command struct {
	Key, Value string
	Delete     bool
	If         *string // only if the key has this value: compare and swap
}

// A result is what a command has done.
type result struct {
	Done  bool   // false: the key had another value than If
	Index uint64 // of its entry
}

// A Change is an item of Watch: what has become of a key.
type Change struct {
	Key, Value string
	Deleted    bool
	Index      uint64 // of the entry in the log: it rises
}

// maxBehind bounds the changes that wait for one watcher. One that has more to read is ended.
const maxBehind = 1024

// A store is the state machine: keys and values in memory, made of the log and its snapshots. It implements raft.FSM.
type store struct {
	mu       sync.Mutex // guards the fields below
	values   map[string]string
	index    uint64 // of the last entry
	watchers map[*watcher]bool
}

// A watcher gets the changes of the keys with a prefix.
type watcher struct {
	prefix  string
	changes chan Change // closed when it is too far behind, or a snapshot has replaced everything
}

func newStore() *store {
	return &store{values: map[string]string{}, watchers: map[*watcher]bool{}}
}

// Apply implements raft.FSM.
func (s *store) Apply(l *raft.Log) any {
	var c command
	if err := codec.Msgpack.Decode(l.Data, &c); err != nil {
		return fmt.Errorf("entry %d: %w", l.Index, err) // the same at every server
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = l.Index
	if was, ok := s.values[c.Key]; c.If != nil && (was != *c.If || !ok && *c.If != "") {
		return result{Index: l.Index}
	}
	if c.Delete {
		delete(s.values, c.Key)
	} else {
		s.values[c.Key] = c.Value
	}
	for w := range s.watchers {
		if !strings.HasPrefix(c.Key, w.prefix) {
			continue
		}
		select {
		case w.changes <- Change{c.Key, c.Value, c.Delete, l.Index}:
		default:
			s.endLocked(w)
		}
	}
	return result{true, l.Index}
}

// get returns the value of a key, and the index of the last entry that was applied.
func (s *store) get(key string) (value string, found bool, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, found = s.values[key]
	return value, found, s.index
}

// watch returns a watcher of all changes from now on, which stop ends.
func (s *store) watch(prefix string) (w *watcher, stop func()) {
	w = &watcher{prefix, make(chan Change, maxBehind)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[w] = true
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endLocked(w)
	}
}

func (s *store) endLocked(w *watcher) {
	if s.watchers[w] {
		delete(s.watchers, w)
		close(w.changes)
	}
}

// A picture is the content of a snapshot.
type picture struct {
	Index  uint64
	Values map[string]string
}

// Snapshot implements raft.FSM.
func (s *store) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &picture{s.index, maps.Clone(s.values)}, nil
}

// Restore implements raft.FSM. It ends all watchers: they do not get what the snapshot has changed.
func (s *store) Restore(from io.ReadCloser) error {
	b, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	var p picture
	if err := codec.Msgpack.Decode(b, &p); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if p.Values == nil {
		p.Values = map[string]string{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.index = p.Values, p.Index
	s.endAllLocked()
	return nil
}

// endAll ends all watchers.
func (s *store) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endAllLocked()
}

func (s *store) endAllLocked() {
	for w := range s.watchers {
		s.endLocked(w)
	}
}

// Persist implements raft.FSMSnapshot.
func (p *picture) Persist(sink raft.SnapshotSink) error {
	b, err := codec.Msgpack.Append(nil, p)
	if err == nil {
		_, err = sink.Write(b)
	}
	if err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (p *picture) Release() {}

var errBehind = qs.Errorf(qs.ErrAborted, "the watcher has missed changes: read the keys, and watch again")
