package tcp

import (
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A hello reads exactly the HELLO off a connection that came in, and nothing that follows: which context the
// connection is for, and so who reads on, is known only then.
//
//	for { read into space() ─► got(n) ─► done? }
type hello struct {
	front [frame.HeaderSize]byte
	rest  []byte // payload, once its length is known
	at    int    // bytes read of front and rest
	h     frame.Header
}

// space is where the next bytes go. It is never empty before got has reported done.
func (p *hello) space() []byte {
	if p.at < len(p.front) {
		return p.front[p.at:]
	}
	return p.rest[p.at-len(p.front):]
}

// got hears that n bytes were read. done is true when g is complete.
func (p *hello) got(n int) (g frame.Greeting, done bool, err error) {
	before := p.at
	p.at += n
	if before < len(p.front) && p.at == len(p.front) {
		if err := p.begin(); err != nil {
			return g, false, err
		}
	}
	if p.at < len(p.front) || p.at < len(p.front)+len(p.rest) {
		return g, false, nil
	}
	if p.h.Flags&frame.FlagPayload != 0 {
		if err := p.h.Verify(append(p.front[:], p.rest...)); err != nil {
			return g, false, err
		}
	}
	g, err = engine.ParseHello(&p.h, p.rest)
	return g, err == nil, err
}

// readHello reads the HELLO and nothing that follows it. An error that is an na.Code says what is wrong with it, others
// are those of reading.
func readHello(from io.Reader) (g frame.Greeting, err error) {
	var h hello
	for done := false; !done; {
		n, err := from.Read(h.space())
		if err != nil {
			return g, err
		}
		if g, done, err = h.got(n); err != nil {
			return g, err
		}
	}
	return g, nil
}

// begin looks at the header and makes room for the payload, within its limit.
func (p *hello) begin() (err error) {
	if beginsTLS(p.front[:]) {
		return errWantsPlain
	}
	if kind := frame.Kind(p.front[4]); kind != frame.Hello { // others may have a tail, which is not here
		return na.WithText(na.ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", kind))
	}
	if p.h, err = frame.Parse(p.front[:]); err != nil {
		return err
	}
	n := p.h.Payload()
	if n > frame.MaxHello {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("HELLO of %d bytes, the limit is %d", n, frame.MaxHello))
	}
	p.rest = make([]byte, n)
	return nil
}

func noContext(g frame.Greeting) error {
	return na.WithText(na.ErrNoEntry, fmt.Sprintf("there is no context %d", g.Target))
}
