package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// The methods of an owner. All may be repeated: a write names its version.
var (
	write = qs.Define[Write, struct{}]("kv/write", qs.Idempotent())
	stat  = qs.Define[string, Stat]("kv/stat", qs.Idempotent())
	fetch = qs.Define[Fetch, Version]("kv/fetch", qs.Idempotent())
	list  = qs.Define[struct{}, []Entry]("kv/list", qs.Idempotent())
)

// A Write is the input of kv/write: the owner pulls the value.
type Write struct {
	Key     string
	Version Version
	Value   qs.Source
}

// A Stat is what kv/stat answers of a key. Small values are in it.
type Stat struct {
	Version Version
	Size    int64
	Value   []byte
}

// A Fetch is the input of kv/fetch: the owner pushes the value, and answers its version, which may be newer than one seen before.
type Fetch struct {
	Key  string
	Into qs.Sink
}

// An Entry is a key of kv/list.
type Entry struct {
	Key     string
	Version Version
}

const (
	copies   = 3
	quorum   = 2
	small    = 2 << 10  // bytes of a value that kv/stat answers at once
	maxValue = 64 << 20 // bytes: an owner holds one in memory for each request
)

// A Service is one owner. Placement is by the names of all, which never change.
type Service struct {
	node    *qs.Node
	self    string
	names   []string
	store   Store
	ready   atomic.Bool
	repairs atomic.Int64 // records that others had and this one did not
}

// handle has the node serve s.
func (s *Service) handle() {
	write.Handle(s.node, func(ctx context.Context, in Write) (none struct{}, err error) {
		switch {
		case !s.ready.Load():
			return none, notReady
		case in.Value.Len() > maxValue:
			return none, qs.Refuse(qs.Errorf(qs.ErrBadInput, "the value has %d bytes, want at most %d", in.Value.Len(), maxValue))
		}
		value, err := io.ReadAll(in.Value.Reader(ctx))
		if err != nil {
			return none, qs.Refuse(err) // nothing was written
		}
		return none, s.store.Put(Record{in.Key, in.Version, value})
	})
	stat.Handle(s.node, func(_ context.Context, key string) (Stat, error) {
		if !s.ready.Load() {
			return Stat{}, notReady
		}
		r, err := s.store.Get(key)
		out := Stat{Version: r.Version, Size: int64(len(r.Value))}
		if len(r.Value) <= small {
			out.Value = r.Value
		}
		return out, err
	})
	fetch.Handle(s.node, func(ctx context.Context, in Fetch) (Version, error) {
		r, err := s.store.Get(in.Key)
		if err == nil {
			_, err = io.Copy(in.Into.Writer(ctx), bytes.NewReader(r.Value))
		}
		return r.Version, err
	})
	list.Handle(s.node, func(context.Context, struct{}) ([]Entry, error) {
		all, err := s.store.List()
		entries := make([]Entry, 0, len(all))
		for key, v := range all {
			entries = append(entries, Entry{key, v})
		}
		slices.SortFunc(entries, func(a, b Entry) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
		return entries, err
	})
}

var notReady = qs.Refuse(qs.Errorf(qs.ErrNotReady, "the owner is being repaired"))

// repair fetches what this owner lacks from the others, and then has it count. A store that has lost nothing needs one other owner of
// each key, a new or lost one needs both: what was acknowledged is at one of them. It tries until ctx ends.
func (s *Service) repair(ctx context.Context, peers *peers) error {
	missed := 0
	if s.store.Whole() {
		missed = copies - quorum
	}
	left := slices.DeleteFunc(slices.Clone(s.names), func(name string) bool { return name == s.self })
	for {
		var err error
		left = slices.DeleteFunc(left, func(name string) bool {
			e := s.repairFrom(ctx, peers, name)
			if e != nil {
				err = e
			}
			return e == nil
		})
		if len(left) <= missed {
			break
		}
		if e := s.node.HG().Sleep(ctx, 200*time.Millisecond); e != nil {
			return fmt.Errorf("repair: %w, at last: %w", e, err)
		}
	}
	if err := s.store.SetWhole(); err != nil {
		return err
	}
	s.ready.Store(true)
	s.node.SetReady(true)
	return nil
}

// repairFrom fetches what one other has that is newer.
func (s *Service) repairFrom(ctx context.Context, peers *peers, name string) error {
	ctx, stop := s.node.HG().NA().WithTimeout(ctx, 30*time.Second)
	defer stop()
	to, err := peers.of(ctx, name)
	if err != nil {
		return err
	}
	entries, err := list.Call(ctx, to, struct{}{})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(group.Owners(s.names, e.Key, copies), s.self) {
			continue
		}
		have, err := s.store.Get(e.Key)
		if err != nil || have.Version.compare(e.Version) >= 0 {
			if err != nil {
				return err
			}
			continue
		}
		var value bytes.Buffer
		v, err := fetch.Call(ctx, to, Fetch{e.Key, qs.Writer(&value)})
		if err != nil {
			return err
		}
		if err := s.store.Put(Record{e.Key, v, value.Bytes()}); err != nil {
			return err
		}
		s.repairs.Add(1)
	}
	return nil
}
