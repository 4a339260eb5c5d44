package framing_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// requireMemoryIntact checks that a session that was fed anything has touched only the memory that it may.
func requireMemoryIntact(t *testing.T, s *liveSession, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil && s.link != nil && s.link.Up() {
			t.Fatalf("a session whose stream is broken continues: %v", err)
		}
	}
	lent := s.out1.Segments()[0]
	if !bytes.Equal(lent, filledBytes(300, 9)) {
		t.Fatal("memory that peers may only read was written")
	}
	if got := string(s.lent.Segments()[0]); got != "lent" {
		t.Fatalf("lent memory was written: %q", got)
	}
	st := s.nctx.Stats()
	if st.Envelopes > 32 {
		t.Fatalf("%d envelopes in use, 32 were guaranteed", st.Envelopes)
	}
	answers := s.take(1 << 20)
	if len(answers) > 1<<20 {
		t.Fatalf("%d bytes of answers", len(answers))
	}
	frames(t, answers) // they are whole
	for s.nctx.Trigger(0) > 0 {
	}
	s.close()
	if n := s.nctx.Class().Regions(); n > 2 {
		t.Fatalf("%d regions are left", n)
	}
}

// FuzzStream checks arbitrary bytes on a live session, cut anywhere.
func FuzzStream(f *testing.F) {
	s := newLiveSession(f)
	b, begins := s.script()
	s.close()
	f.Add(b, uint16(1<<12))
	for i, at := range begins {
		end := len(b)
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		f.Add(b[at:end], uint16(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, atMost uint16) {
		s := newLiveSession(t)
		requireMemoryIntact(t, s, s.feed(b, int(atMost)+1))
	})
}

// FuzzFrames checks arbitrary frames with valid checksums: nine bytes of the input determine a
// frame.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{2, 0, 1, 5, 10, 0, 0, 0, 0, 7, 0, 2, 0, 100, 0, 1, 0, 0}, uint16(100))
	f.Add([]byte{4, 0, 3, 0, 200, 0, 1, 0, 0, 4, 0, 3, 200, 200, 0, 1, 0, 0}, uint16(9))
	f.Add([]byte{6, 0, 9, 0, 0, 0, 2, 7, 100, 15, 0, 0, 0, 0, 0, 3, 0, 4}, uint16(9))
	f.Fuzz(func(t *testing.T, input []byte, atMost uint16) {
		s := newLiveSession(t)
		ops := []uint64{0, 1, 2, 3, s.ids[frame.Get], s.ids[frame.Put], s.ids[frame.Get] + 2, 1 << 63}
		tokens := [][16]byte{{}, s.in1.Key().Token, s.out1.Key().Token, s.lent.Key().Token}
		var b []byte
		for len(input) >= 9 && len(b) < 1<<18 {
			in := input[:9]
			input = input[9:]
			h := frame.Header{
				Kind: frame.Kind(in[0]%17 + 1), Flags: in[1] & (frame.FlagTell | frame.FlagAnswer), Context: uint16(in[1] >> 7), Credit: 32 + uint32(in[1]>>4&7),
				Op: ops[in[2]%8], Tag: uint64(in[3]),
			}
			if in[3] > 250 {
				h.Tag = -uint64(in[3]-250) * 7
			}
			n := int(binary.LittleEndian.Uint16(in[4:])) % 6000
			h.Tail = frame.Tail{Token: tokens[in[6]%4], Offset: int64(in[7]) * 3, Length: int64(in[8]) * 50}
			switch h.Kind {
			case frame.Data:
				b = append(h.AppendFront(b, n), make([]byte, n)...)
			case frame.Hello, frame.Unexpected, frame.Expected, frame.Goaway:
				b = h.Append(b, make([]byte, n))
			default:
				b = h.AppendFront(b, 0)
			}
		}
		requireMemoryIntact(t, s, s.feed(b, int(atMost)+1))
	})
}
