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

// A command is the content of a log entry.
type command struct {
	Key, Value string
	Delete     bool
	If         *string // compare and swap: apply only if the key has this value
}

// A result is the outcome of applying a command.
type result struct {
	Done  bool   // false if the key's value did not equal If
	Index uint64 // index of the log entry
}

// A Change is one item of Watch.
type Change struct {
	Key, Value string
	Deleted    bool
	Index      uint64 // index of the log entry; it increases with every change
}

// maxQueuedChanges is the maximum number of changes queued for one watcher. A watcher whose queue
// is full is ended.
const maxQueuedChanges = 1024

// A store is the state machine. It is a map in memory, built from the log and its snapshots. It
// implements raft.FSM.
type store struct {
	mu        sync.Mutex // guards the fields below
	values    map[string]string
	lastIndex uint64 // index of the last applied entry
	watchers  map[*watcher]bool
}

// A watcher receives changes of the keys with a given prefix.
type watcher struct {
	prefix  string
	changes chan Change // closed if the queue was full or a snapshot has replaced the values
}

// newStore returns an empty store.
func newStore() *store {
	return &store{values: map[string]string{}, watchers: map[*watcher]bool{}}
}

// Apply implements raft.FSM.
func (s *store) Apply(l *raft.Log) any {
	var c command
	if err := codec.Msgpack.Decode(l.Data, &c); err != nil {
		return fmt.Errorf("entry %d: %w", l.Index, err) // deterministic: the same on every server
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastIndex = l.Index
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
			s.endWatcherLocked(w)
		}
	}
	return result{true, l.Index}
}

// get returns a key's value and the index of the last applied entry.
func (s *store) get(key string) (value string, found bool, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, found = s.values[key]
	return value, found, s.lastIndex
}

// watch returns a watcher of all subsequent changes to keys with the given prefix. The caller must
// call stop.
func (s *store) watch(prefix string) (w *watcher, stop func()) {
	w = &watcher{prefix, make(chan Change, maxQueuedChanges)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[w] = true
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endWatcherLocked(w)
	}
}

// endWatcherLocked ends one watcher. s.mu must be held.
func (s *store) endWatcherLocked(w *watcher) {
	if s.watchers[w] {
		delete(s.watchers, w)
		close(w.changes)
	}
}

// A snapshot is the encoded state of a store. It implements raft.FSMSnapshot.
type snapshot struct {
	Index  uint64
	Values map[string]string
}

// Snapshot implements raft.FSM.
func (s *store) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &snapshot{s.lastIndex, maps.Clone(s.values)}, nil
}

// Restore implements raft.FSM. It ends all watchers, because they cannot determine which values the
// snapshot has changed.
func (s *store) Restore(from io.ReadCloser) error {
	b, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	var p snapshot
	if err := codec.Msgpack.Decode(b, &p); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if p.Values == nil {
		p.Values = map[string]string{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.lastIndex = p.Values, p.Index
	s.endWatchersLocked()
	return nil
}

// endWatchers ends all watchers.
func (s *store) endWatchers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWatchersLocked()
}

// endWatchersLocked ends all watchers. s.mu must be held.
func (s *store) endWatchersLocked() {
	for w := range s.watchers {
		s.endWatcherLocked(w)
	}
}

// Persist implements raft.FSMSnapshot.
func (p *snapshot) Persist(sink raft.SnapshotSink) error {
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
func (p *snapshot) Release() {}

var errWatcherBehind = qs.Errorf(qs.ErrAborted,
	"kv: the watcher missed changes: read the keys, and watch again")
