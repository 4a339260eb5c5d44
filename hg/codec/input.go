package codec

import "io"

// A input feeds checked bytes to a msgpack.Decoder and keeps the decoder on the same reading of them as the guard.
//
// The two disagree in one place: asked for a map, the decoder takes the head of an extension, drops it, and reads the
// map out of the extension's body, or out of the next value if there is no body. The guard has not looked into the body,
// and nests differently, so that 8 bytes could ask for gigabytes or for endless recursion. Type bytes are read one at a
// time and bodies in one piece, so a input with exts set refuses to give out an extension's body byte by byte.
type input struct {
	b    []byte
	pos  int
	exts bool // b contains extensions: follow where they are

	next       int // the first value whose head has not been passed
	body, stop int // the body of the value before next, if that is an extension, else empty
}

var _ interface {
	io.Reader
	io.ByteScanner
} = (*input)(nil)

func (s *input) reset(b []byte, exts bool) { *s = input{b: b, exts: exts} }

func (s *input) Read(p []byte) (int, error) {
	if s.pos == len(s.b) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b[s.pos:])
	s.pos += n
	return n, nil
}

func (s *input) ReadByte() (byte, error) {
	if s.pos == len(s.b) {
		return 0, io.EOF
	}
	if s.exts {
		if err := s.follow(); err != nil {
			return 0, err
		}
	}
	c := s.b[s.pos]
	s.pos++
	return c, nil
}

// follow keeps body and stop up to date with pos. It walks over b once, whatever the decoder does.
func (s *input) follow() error {
	for s.next <= s.pos {
		at := s.next
		cl, n, body := head(s.b, at)
		s.body, s.stop, s.next = 0, 0, body
		switch cl {
		case scalar:
			s.next = body + n
		case extension:
			s.body, s.stop, s.next = body+1, body+n, body+n
			if n == 1 { // nothing to recognise a wrong reading by
				return refuse(s.b, at, ErrExtension)
			}
		}
	}
	if s.body <= s.pos && s.pos < s.stop {
		return refuse(s.b, s.pos, ErrExtension)
	}
	return nil
}

// UnreadByte takes back the last ReadByte.
func (s *input) UnreadByte() error {
	s.pos--
	return nil
}
