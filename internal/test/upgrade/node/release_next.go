//go:build quicksilver_next

package main

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/upgrade"
)

// A question has a new field, which is empty: an origin may only set it if the target is known to
// have the field (docs/EVOLUTION.md).
type question struct {
	N     uint64
	Data  []byte
	Later map[string]uint64
}

// An answer has a new field, which is set: an origin without it skips it.
type answer struct {
	N     uint64
	Data  []byte
	Later map[string]uint64 `msgpack:",omitempty"`
}

func reply(in question) answer {
	return answer{N: in.N, Data: in.Data, Later: map[string]uint64{"n": in.N}}
}

func addLater(r *upgrade.Report) {
	seen := &frame.Seen
	r.Later = map[string]int64{
		"labels": seen.Labels.Load(), "notes": seen.Notes.Load(), "asks": seen.Asks.Load(), "flags": seen.Flags.Load(),
		"fields": seen.Fields.Load(), "handles": seen.Handles.Load(),
	}
}
