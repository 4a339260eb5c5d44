package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

var updateGolden = flag.Bool("frame.update", false, "rewrite testdata/golden.txt")

// kinds are all of them, by number.
var kinds = []frame.Kind{
	frame.Hello, frame.Unexpected, frame.Expected, frame.Put, frame.Get, frame.Data, frame.Done,
	frame.Cancel, frame.Ping, frame.Pong, frame.Credit, frame.Goaway, frame.Dropped, frame.GiveBack,
	frame.Withdraw, frame.Withdrawn, frame.Abandon, frame.Body, frame.Read,
	frame.Leave, frame.Stay, frame.Stream, frame.Window, frame.Reset,
	frame.Probe, frame.Probed, frame.Held, frame.Retire,
}

// sampleFrame is a frame of each kind with every field set that it can have.
func sampleFrame(k frame.Kind) (h frame.Header, payload []byte) {
	h = frame.Header{Kind: k, Context: 0x0102, Op: 0x1112131415161718, Tag: 0x2122232425262728, Credit: 0x31323334}
	for i := range h.Tail.Token {
		h.Tail.Token[i] = 0xd0 + byte(i)
	}
	h.Tail.Offset, h.Tail.Length = 0x4142434445464748, 0x5152535455565758
	switch k {
	case frame.Hello:
		h.Tag = frame.Magic
		g := greeting()
		payload = g.Append(nil)
	case frame.Window:
		payload = []byte("8 bytes.")
	case frame.Stream:
		h.Flags = frame.FlagRoom | frame.FlagEnd
		payload = []byte("payload")
	case frame.Unexpected, frame.Goaway, frame.Data, frame.Reset:
		payload = []byte("payload")
	case frame.Expected:
		h.Flags = frame.FlagTell
		payload = []byte("payload")
	}
	if !hasTail(k) {
		h.Tail = frame.Tail{}
	}
	return h, payload
}

func hasTail(k frame.Kind) bool {
	return k == frame.Put || k == frame.Get || k == frame.GiveBack || k == frame.Read
}

func greeting() frame.Greeting {
	g := frame.Greeting{
		Versions: frame.Range{Oldest: 1, Newest: 1}, Listen: "tcp://10.0.0.7:9000", Host: "host", Context: 2, Target: 3, Envelopes: 32, Eager: 4096,
		Features: 5, Label: []byte("auth"), Secret: frame.Secret([]byte("secret of this  ")), Proof: frame.Secret([]byte("secret of before")),
	}
	for i := range g.Incarnation {
		g.Incarnation[i] = 0xe0 + byte(i)
	}
	return g
}

// encode appends a frame as a carrier sends it: bulk data and what has no payload with AppendFront.
func encode(b []byte, h frame.Header, payload []byte) []byte {
	if h.Kind.Bulk() || payload == nil {
		return append(h.AppendFront(b, len(payload)), payload...)
	}
	return h.Append(b, payload)
}

// TestGolden checks the bytes of every kind. They are sent to peers: a difference is a new version
// of the protocol.
func TestGolden(t *testing.T) {
	var got strings.Builder
	for _, k := range kinds {
		h, payload := sampleFrame(k)
		b := encode(nil, h, payload)
		fmt.Fprintf(&got, "%v\n", k)
		for len(b) > 0 {
			n := min(32, len(b))
			fmt.Fprintf(&got, "\t%s\n", hex.EncodeToString(b[:n]))
			b = b[n:]
		}
	}
	const file = "testdata/golden.txt"
	if *updateGolden {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

func TestParseWhatWasAppended(t *testing.T) {
	for _, k := range kinds {
		h, payload := sampleFrame(k)
		prefix := []byte("before")
		b := encode(append([]byte(nil), prefix...), h, payload)
		require.Equal(t, prefix, b[:6])
		b = b[6:]
		require.Equal(t, frame.HeaderSize, frame.Need(b[:3]))
		got, err := frame.Parse(b[:frame.Need(b)])
		require.NoError(t, err, "%v", k)
		require.Equal(t, frame.Need(b), got.Size(), "%v", k)
		require.Equal(t, len(payload), got.Payload(), "%v", k)
		require.Equal(t, len(b), got.Size()+got.Payload(), "%v", k)
		require.Equal(t, payload != nil && !k.Bulk(), got.Flags&frame.FlagPayload != 0, "%v: the checksum covers the payload", k)
		if got.Flags&frame.FlagPayload != 0 {
			require.NoError(t, got.Verify(b), "%v", k)
		}
		h.Length, h.CRC, h.Flags = got.Length, got.CRC, h.Flags|got.Flags&frame.FlagPayload
		require.Equal(t, h, got, "%v", k)
	}
}

// TestChecksum checks that any flipped bit is detected: in header and tail always, in the payload
// where the checksum covers it.
func TestChecksum(t *testing.T) {
	for _, k := range kinds {
		h, payload := sampleFrame(k)
		b := encode(nil, h, payload)
		covered := len(b)
		if k.Bulk() {
			covered -= len(payload)
		}
		for bit := range covered * 8 {
			bad := bytes.Clone(b)
			bad[bit/8] ^= 1 << (bit % 8)
			got, err := frame.Parse(append(bad, make([]byte, frame.TailSize)...))
			if err == nil && got.Flags&frame.FlagPayload != 0 && got.Size()+got.Payload() <= len(bad) {
				err = got.Verify(bad[:got.Size()+got.Payload()])
			}
			if err == nil && got.Size()+got.Payload() > len(bad) {
				continue // it claims to be longer: more must arrive before it can be judged
			}
			require.Error(t, err, "%v with bit %d flipped", k, bit)
			require.Contains(t, []codes.Code{codes.ErrProtocol, codes.ErrChecksum}, codes.Of(err))
		}
	}
}

func TestParseRefuses(t *testing.T) {
	edit := func(k frame.Kind, f func(h *frame.Header)) []byte {
		h, payload := sampleFrame(k)
		f(&h)
		return encode(nil, h, payload)
	}
	raw := func(k frame.Kind, at int, v ...byte) []byte {
		h, payload := sampleFrame(k)
		b := encode(nil, h, payload)
		copy(b[at:], v)
		return b
	}
	for text, b := range map[string][]byte{
		"unknown critical kind 0":           raw(frame.Ping, 4, 0),
		"unknown critical kind 29":          raw(frame.Ping, 4, 29),
		"unknown critical kind 127":         raw(frame.Ping, 4, 127),
		"unknown flags 0x80":                edit(frame.Ping, func(h *frame.Header) { h.Flags = 0x80 }),
		"unknown flags 0x81":                edit(frame.Unexpected, func(h *frame.Header) { h.Flags = 0x80 }),
		"PING frame of length 1":            raw(frame.Ping, 0, 1),
		"GET frame of length 31":            raw(frame.Get, 0, 31),
		"GET frame of length 33":            raw(frame.Get, 0, 33),
		"PUT frame of length 31":            raw(frame.Put, 0, 31),
		"PUT frame of length 33":            raw(frame.Put, 0, 33),
		"the limit is 1048576":              raw(frame.Data, 0, 0xff, 0xff, 0xff, 0xff),
		"negative offset or length":         edit(frame.Get, func(h *frame.Header) { h.Tail.Offset = -1 }),
		"GIVEBACK frame with a negative":    edit(frame.GiveBack, func(h *frame.Header) { h.Tail.Length = -1 }),
		"without a checksum of its payload": raw(frame.Unexpected, 5, 0),
	} {
		_, err := frame.Parse(b)
		require.ErrorIs(t, err, codes.ErrProtocol, text)
		require.ErrorContains(t, err, text)
	}
	h := frame.Header{Kind: frame.Data}
	b := h.AppendFront(nil, frame.MaxPayload)
	got, err := frame.Parse(b)
	require.NoError(t, err, "the longest frame")
	require.Equal(t, frame.MaxPayload, got.Payload())
}

// TestParseUnknownOptional checks that a frame of an optional kind that is not known is read to its
// end, whatever its flags; its checksum is checked.
func TestParseUnknownOptional(t *testing.T) {
	for _, k := range []frame.Kind{frame.FirstOptional, 200, 255} {
		require.True(t, k.IsSkipped())
		for _, payload := range [][]byte{nil, []byte("of a later release")} {
			h := frame.Header{Kind: k, Flags: 0xfe, Op: 1, Tag: 2, Credit: 3}
			b := h.Append(nil, payload)
			got, err := frame.Parse(b)
			require.NoError(t, err)
			require.Equal(t, len(payload), got.Payload())
			require.Equal(t, frame.HeaderSize, got.Size())
			require.NoError(t, got.Verify(b))
			b[8] ^= 1
			require.ErrorIs(t, got.Verify(b), codes.ErrChecksum)
			binary.LittleEndian.PutUint32(b, frame.MaxWhole+1)
			_, err = frame.Parse(b)
			require.ErrorIs(t, err, codes.ErrProtocol, "a length beyond the limit")
		}
	}
	for _, k := range kinds {
		require.False(t, k.IsSkipped())
	}
	require.False(t, frame.Kind(29).IsSkipped())
}

func TestString(t *testing.T) {
	require.Equal(t, "KIND0 KIND99 KIND255", fmt.Sprint(frame.Kind(0), frame.Kind(99), frame.Kind(255)))
	for _, k := range kinds {
		h, payload := sampleFrame(k)
		b := encode(nil, h, payload)
		got, err := frame.Parse(b)
		require.NoError(t, err)
		text := got.String()
		require.Contains(t, text, k.String())
		require.Contains(t, text, fmt.Sprintf("payload=%d", len(payload)))
		if hasTail(k) {
			require.Contains(t, text, fmt.Sprintf("offset=%d length=%d", h.Tail.Offset, h.Tail.Length))
		}
		for _, leak := range []string{"d0d1", "D0D1", "208 209", "\xd0\xd1"} {
			require.NotContains(t, text, leak, "the token is printed")
		}
	}
	h, _ := sampleFrame(frame.Expected)
	require.Contains(t, h.String(), "flags=0x2")
}

func TestBulk(t *testing.T) {
	for _, k := range kinds {
		require.Equal(t, k == frame.Data, k.Bulk(), "%v", k)
	}
	require.False(t, frame.Kind(200).Bulk())
}

// FuzzParse checks that any frame that Parse accepts is appended as the same bytes.
func FuzzParse(f *testing.F) {
	for _, k := range kinds {
		h, payload := sampleFrame(k)
		beginnings.Seed(f, encode(nil, h, payload))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < frame.HeaderSize || len(b) < frame.Need(b) {
			return
		}
		h, err := frame.Parse(b)
		if err != nil {
			if c := codes.Of(err); c != codes.ErrProtocol && c != codes.ErrChecksum {
				t.Fatalf("code %v: %v", c, err)
			}
			return
		}
		if h.Size() != frame.Need(b) || h.Payload() < 0 || h.Payload() > frame.MaxPayload || h.Tail.Offset < 0 || h.Tail.Length < 0 {
			t.Fatalf("accepted %v of %d bytes with %+v", &h, h.Size(), h.Tail)
		}
		_ = h.String()
		total := h.Size() + h.Payload()
		if h.Flags&frame.FlagPayload == 0 {
			again := h
			if got := again.AppendFront(nil, h.Payload()); !bytes.Equal(got, b[:h.Size()]) {
				t.Fatalf("%v: got %x, want %x", &h, got, b[:h.Size()])
			}
		} else if len(b) >= total && h.Verify(b[:total]) == nil {
			again := h
			if got := again.Append(nil, b[h.Size():total]); !bytes.Equal(got, b[:total]) {
				t.Fatalf("%v: got %x, want %x", &h, got, b[:total])
			}
		}
	})
}
