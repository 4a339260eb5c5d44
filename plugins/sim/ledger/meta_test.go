package ledger

import (
	"strconv"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// metaOf returns the metadata of the input of a call, which its output returns: none for half of
// the calls, else the token and up to 80 bytes.
func (s *scenario) metaOf(token uint64) (m hg.Metadata) {
	if token%2 == 0 {
		return m
	}
	m, err := m.With("token", strconv.FormatUint(token, 16))
	if err == nil {
		m, err = m.With("room", string(tokenPattern(token, int(token%81))))
	}
	if err != nil {
		s.fail("metadata of call %x: %v", token, err)
	}
	return m
}

// checkMeta requires that the metadata is that of a call.
func (s *scenario) checkMeta(what string, token uint64, m hg.Metadata) {
	want := s.metaOf(token)
	for name, value := range want.All() {
		if got, ok := m.Get(name); !ok || got != value {
			s.fail("call %x: %s of the %s is %q, %q was sent", token, name, what, got, value)
		}
	}
	for name := range m.All() {
		if _, ok := want.Get(name); !ok {
			s.fail("call %x: %s arrived with the %s, and was not sent", token, name, what)
		}
	}
}
