package raftqs

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	msgpack "github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// sampleMessages has one of each type, with every field set.
func sampleMessages() []any {
	h := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("kv-1"), Addr: []byte("tcp://127.0.0.1:7000")}
	return []any{
		&struct{}{},
		&raft.AppendEntriesRequest{RPCHeader: h, Term: 1, Leader: []byte("l"), PrevLogEntry: 2,
			PrevLogTerm: 3, LeaderCommitIndex: 4, Entries: []*raft.Log{
				{Index: 1<<64 - 1, Term: 6, Type: raft.LogConfiguration, Data: []byte("data"),
					Extensions: []byte("more"), AppendedAt: time.Unix(7, 8)},
				{Index: 9},
			}},
		&raft.AppendEntriesResponse{RPCHeader: h, Term: 1, LastLog: 2, Success: true,
			NoRetryBackoff: true},
		&raft.RequestVoteRequest{RPCHeader: h, Term: 1, Candidate: []byte("c"), LastLogIndex: 2,
			LastLogTerm: 3, LeadershipTransfer: true},
		&raft.RequestVoteResponse{RPCHeader: h, Term: 1, Peers: []byte("p"), Granted: true},
		&raft.RequestPreVoteRequest{RPCHeader: h, Term: 1, LastLogIndex: 2, LastLogTerm: 3},
		&raft.RequestPreVoteResponse{RPCHeader: h, Term: 1, Granted: true},
		&raft.TimeoutNowRequest{RPCHeader: h},
		&raft.TimeoutNowResponse{RPCHeader: h},
		&raft.InstallSnapshotRequest{RPCHeader: h, SnapshotVersion: 1, Term: 2, Leader: []byte("l"),
			LastLogIndex: 3, LastLogTerm: 4, Peers: []byte("p"),
			Configuration: []byte("c"), ConfigurationIndex: 5, Size: 6},
		&raft.InstallSnapshotResponse{RPCHeader: h, Term: 1, Success: true},
	}
}

// TestEncoding checks that every field of every type arrives, and truncated or trailing bytes are
// refused.
func TestEncoding(t *testing.T) {
	for _, want := range sampleMessages() {
		requireAllSet(t, reflect.ValueOf(want).Elem(), reflect.TypeOf(want).String())
		b, err := wireCodec{}.Append([]byte("before"), want)
		require.NoError(t, err)
		b = bytes.TrimPrefix(b, []byte("before"))
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		sent := bytes.Clone(b)
		require.NoError(t, wireCodec{}.Decode(sent, got))
		clear(sent) // it is reused after the call
		require.Equal(t, want, got)
		for n := range b {
			require.Error(t, wireCodec{}.Decode(b[:n],
				reflect.New(reflect.TypeOf(want).Elem()).Interface()), "%T, %d of %d bytes", want, n,
				len(b))
		}
		require.Error(t, wireCodec{}.Decode(append(b, 0), got), "%T", want)
	}
	_, err := wireCodec{}.Append(nil, 7)
	require.Error(t, err)
	require.Error(t, wireCodec{}.Decode(nil, new(int)))
}

// requireAllSet fails if a field is zero: a type of raft has one that messages, and perhaps wire, do not
// know.
func requireAllSet(t *testing.T, v reflect.Value, name string) {
	for i := range v.NumField() {
		f, field := v.Field(i), v.Type().Field(i)
		if field.Anonymous {
			requireAllSet(t, f, name)
			continue
		}
		require.False(t, f.IsZero(), "%s.%s", name, field.Name)
	}
}

// TestManyEntriesInFewBytes checks that a number of entries that exceeds the bytes allocates
// nothing for them.
func TestManyEntriesInFewBytes(t *testing.T) {
	b, err := wireCodec{}.Append(nil, &raft.AppendEntriesRequest{})
	require.NoError(t, err)
	b = append(b[:len(b)-1], 0xff, 0xff, 0xff, 0xff, 0x7f)
	require.ErrorIs(t, wireCodec{}.Decode(b, &raft.AppendEntriesRequest{}), errFormat)
}

func FuzzDecode(f *testing.F) {
	for i, m := range sampleMessages() {
		b, err := wireCodec{}.Append(nil, m)
		require.NoError(f, err)
		f.Add(i, b)
	}
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		all := sampleMessages()
		v := reflect.New(reflect.TypeOf(all[uint(i)%uint(len(all))]).Elem()).Interface()
		if (wireCodec{}).Decode(b, v) != nil {
			return
		}
		again, err := wireCodec{}.Append(nil, v)
		require.NoError(t, err)
		w := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		require.NoError(t, wireCodec{}.Decode(again, w))
		require.Equal(t, v, w)
	})
}

// TestSplit checks that a large request becomes several with the same effect.
func TestSplit(t *testing.T) {
	req := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 10, PrevLogTerm: 2, LeaderCommitIndex: 9}
	require.Len(t, splitRequest(req), 1)
	for i := range uint64(9) {
		req.Entries = append(req.Entries,
			&raft.Log{Index: 11 + i, Term: 3, Data: make([]byte, maxRequest/4)})
	}
	req.Entries = append(req.Entries, &raft.Log{Index: 20, Term: 3, Data: make([]byte, 2*maxRequest)})
	parts := splitRequest(req)
	require.Len(t, parts, 4)
	var entries []*raft.Log
	prev := req.PrevLogEntry
	for _, p := range parts {
		require.Equal(t, prev, p.PrevLogEntry)
		require.Equal(t, req.LeaderCommitIndex, p.LeaderCommitIndex)
		entries = append(entries, p.Entries...)
		prev = p.Entries[len(p.Entries)-1].Index
	}
	require.Equal(t, req.Entries, entries)
	require.EqualValues(t, 2, parts[0].PrevLogTerm)
	require.EqualValues(t, 3, parts[1].PrevLogTerm)
}

// BenchmarkEncoding compares wire with the msgpack of raft's own transport: a request is encoded
// and decoded.
func BenchmarkEncoding(b *testing.B) {
	req := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("kv-1"),
		Addr: []byte("tcp://127.0.0.1:7000")},
		Term: 5, Leader: []byte("tcp://127.0.0.1:7000"), PrevLogEntry: 1 << 20, PrevLogTerm: 5,
		LeaderCommitIndex: 1 << 20}
	for range 64 {
		req.Entries = append(req.Entries,
			&raft.Log{Index: 1 << 20, Term: 5, Data: make([]byte, 100), AppendedAt: time.Now()})
	}
	b.Run("wire", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf, _ = wireCodec{}.Append(buf[:0], req)
			if err := (wireCodec{}).Decode(buf, &raft.AppendEntriesRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("msgpack", func(b *testing.B) {
		b.ReportAllocs()
		var buf bytes.Buffer
		enc, dec := msgpack.NewEncoder(&buf, &msgpack.MsgpackHandle{}),
			msgpack.NewDecoder(&buf, &msgpack.MsgpackHandle{})
		for b.Loop() {
			if err := enc.Encode(req); err != nil {
				b.Fatal(err)
			}
			if err := dec.Decode(&raft.AppendEntriesRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
