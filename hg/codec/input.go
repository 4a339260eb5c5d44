package codec

import "io"

// An input passes checked bytes to a msgpack.Decoder and ensures that the decoder interprets them
// as the guard does. The two would differ in one case. If the decoder expects a map and finds an
// extension, it discards the extension's head and decodes the map from the extension's body, or
// from the next value if there is no body. The guard has not checked the body as a value, so 8
// bytes could request gigabytes or endless recursion. The decoder reads type bytes one at a time
// and bodies as a whole. An input with exts set therefore returns an error if the decoder reads the
// body of an extension byte by byte.
type input struct {
	b    []byte
	pos  int
	exts bool // reports whether b contains extensions, whose positions must be tracked

	next       int // offset of the first value whose head has not been passed
	body, stop int // bounds of the body of the value before next, if that is an extension; otherwise empty
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

// follow updates next, body, and stop for the value at pos. It returns an error if pos is in the
// body of an extension. All calls together walk b once.
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
			if n == 1 { // a body of one byte, whose misinterpretation cannot be detected
				return refuse(s.b, at, ErrExtension)
			}
		}
	}
	if s.body <= s.pos && s.pos < s.stop {
		return refuse(s.b, s.pos, ErrExtension)
	}
	return nil
}

// UnreadByte undoes the most recent ReadByte.
func (s *input) UnreadByte() error {
	s.pos--
	return nil
}
