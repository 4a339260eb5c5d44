//go:build linux

package upgrade_test

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A recordedFrame is a frame of a conversation of testdata/wire, or of a test's own: its header, as it
// was sent, and its payload.
type recordedFrame struct {
	frame.Header
	payload []byte
}

// conversations are those of testdata/wire, by release, and then the frames by their names.
func conversations(t *testing.T) map[string]map[string]recordedFrame {
	t.Helper()
	files, err := filepath.Glob(root + "/testdata/wire/*/conversation.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]map[string]recordedFrame{}
	block := regexp.MustCompile(`(?m)^([a-z-]+)\n[A-Z]+ ctx.*\n((?:[0-9a-f]{4}  .*\n?)+)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		frames := map[string]recordedFrame{}
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			var b []byte
			for line := range strings.Lines(m[2]) {
				part, err := hex.DecodeString(strings.ReplaceAll(strings.TrimRight(line[6:min(53, len(line))], " \n"), " ", ""))
				require.NoError(t, err, "%q", line)
				b = append(b, part...)
			}
			h, err := frame.Parse(b)
			require.NoError(t, err, "rule \"a frame of the release before is read\" is broken: %s of %s", m[1], file)
			if h.Flags&frame.FlagPayload != 0 {
				require.NoError(t, h.Verify(b), "%s of %s", m[1], file)
			}
			frames[m[1]] = recordedFrame{h, b[h.Size():]}
		}
		require.Greater(t, len(frames), 15, "%s", file)
		all[filepath.Base(filepath.Dir(file))] = frames
	}
	return all
}

// withLabel returns the payload of a HELLO with a value added, or put in the place of that of the
// same label. remove leaves the label out.
func withLabel(hello []byte, label uint16, value []byte) []byte {
	le := binary.LittleEndian
	var b []byte
	put := func(label uint16, v []byte) {
		b = append(le.AppendUint16(le.AppendUint16(b, label), uint16(len(v))), v...)
	}
	done := false
	for len(hello) > 0 {
		l, n := le.Uint16(hello), int(le.Uint16(hello[2:]))
		if l >= label && !done {
			done = true
			put(label, value)
		}
		if l != label {
			put(l, hello[4:4+n])
		}
		hello = hello[4+n:]
	}
	if !done {
		put(label, value)
	}
	return b
}

const (
	labelVersions = 0x0100
	labelListen   = 0x0300
	labelCarrier  = 0x0a00
	labelMessages = 0x1300
)

// A player is a peer over a real transport that sends the frames of a test: its HELLO and its
// frames are the test's, and the frames of the other side are kept. It is a plugin around the
// transport's, and a class of package na above, which does what the transport needs; no frame of
// that class leaves.
type player struct {
	carrier.Plugin
	t     *testing.T
	rule  string // that the test looks at
	hello []byte // payload of HELLO, but for the label of the carrier
	nctx  *na.Context
	core  carrier.Core
	outer *playedCore // what the transport is given for it
	inner carrier.Carrier

	// Guarded by the lock of the core.
	session *playedSession
	queue   []recordedFrame
	refused []frame.Bye
	failed  []error

	got     []recordedFrame
	changed chan struct{} // has room for one: something above has
	done    chan struct{}
	stop    chan struct{}
}

// signal notes that something has changed for which until may wait.
func (p *player) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// newPlayer opens a player that listens at, or with a scheme only dials from, an address.
func newPlayer(t *testing.T, plugin carrier.Plugin, addr string, hello []byte) *player {
	t.Helper()
	p := &player{Plugin: plugin, t: t, rule: "releases that follow one another talk", hello: hello, changed: make(chan struct{}, 1), done: make(chan struct{}), stop: make(chan struct{})}
	cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{p}})
	require.NoError(t, err)
	p.nctx, err = cls.NewContext()
	require.NoError(t, err)
	go func() {
		defer close(p.done)
		for {
			select {
			case <-p.stop:
				p.nctx.Close()
				for !p.nctx.Closed() {
					_ = p.nctx.Progress(time.Millisecond)
					p.nctx.Trigger(0)
				}
				return
			default:
				_ = p.nctx.Progress(5 * time.Millisecond)
				p.nctx.Trigger(0)
			}
		}
	}()
	t.Cleanup(func() {
		close(p.stop)
		<-p.done
	})
	return p
}

// dial begins a session with the live side.
func (p *player) dial(to na.Addr) {
	op := p.nctx.NewOp(func(*na.Op, na.Result) {})
	require.NoError(p.t, p.nctx.SendUnexpected(op, to, 1, []byte("never leaves")))
}

// sendFrames sends frames, once there is a session.
func (p *player) sendFrames(all ...recordedFrame) {
	p.t.Helper()
	p.waitUntil("the session is up", func() bool { return p.session != nil && p.session.Up() })
	p.core.Lock()
	p.queue = append(p.queue, all...)
	p.inner.Flush([]carrier.Session{p.session.Session})
	p.core.Unlock()
}

// waitUntil waits until what is locked is so.
func (p *player) waitUntil(what string, is func() bool) {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		p.core.Lock()
		ok := is()
		p.core.Unlock()
		if ok {
			return
		}
		select {
		case <-p.changed:
		case <-timer.C:
			p.t.Fatalf("rule %q is broken: not within %v: %s; refused %v, failed %v, got %v", p.rule, patience, what, p.refused, p.failed, p.got)
		}
	}
}

// waitForFrame waits for a frame of a kind, and removes it from the received ones.
func (p *player) waitForFrame(kind frame.Kind) (r recordedFrame) {
	p.t.Helper()
	p.waitUntil("a "+kind.String()+" comes", func() bool {
		for i := range p.got {
			if p.got[i].Kind == kind {
				r = p.got[i]
				p.got = append(p.got[:i:i], p.got[i+1:]...)
				return true
			}
		}
		return false
	})
	return r
}

// Open implements carrier.Plugin.
func (p *player) Open(class carrier.Class, listen string) (*carrier.Network, error) {
	n, err := p.Plugin.Open(&playedClass{class, p}, listen)
	if err != nil {
		return nil, err
	}
	inner := n.NewCarrier
	n.NewCarrier = func(core carrier.Core) (carrier.Carrier, error) {
		outer := &playedCarrier{p: p}
		p.outer = &playedCore{core, outer}
		c, err := inner(p.outer)
		outer.Carrier, p.inner, p.core = c, c, core
		return outer, err
	}
	return n, nil
}

// A playedClass is that of package na, whose context the player wraps.
type playedClass struct {
	carrier.Class
	p *player
}

func (c *playedClass) Context(target int) carrier.Core {
	if c.Class.Context(target) == nil {
		return nil
	}
	return c.p.outer
}

// A playedCarrier is the transport's, which is given sessions of the player.
type playedCarrier struct {
	carrier.Carrier
	p *player
}

func (c *playedCarrier) Dial(s carrier.Session) { c.Carrier.Dial(c.p.play(s)) }

func (p *player) play(s carrier.Session) *playedSession {
	p.session = &playedSession{s, p}
	p.signal()
	return p.session
}

// A playedCore is that of package na, whose sessions the player wraps.
type playedCore struct {
	carrier.Core
	outer *playedCarrier
}

func (c *playedCore) Admit(_ carrier.Carrier, conn any, g *carrier.Greeting, verified bool) (carrier.Session, error) {
	s, err := c.Core.Admit(c.outer, conn, g, verified)
	if err != nil {
		return nil, err
	}
	return c.outer.p.play(s), nil
}

// A playedSession is a session, in which the player sends the frames of the test.
type playedSession struct {
	carrier.Session
	p *player
}

func (s *playedSession) Hello(_ carrier.Lane, dst, label []byte) []byte {
	return append(dst, withLabel(s.p.hello, labelCarrier, label)...)
}

func (s *playedSession) Sends() bool { return len(s.p.queue) > 0 }

func (s *playedSession) Pull(lane carrier.Lane, w carrier.Writer) (more bool) {
	for len(s.p.queue) > 0 && lane == carrier.Messages && s.Up() {
		r := s.p.queue[0]
		whole, _ := w.Room()
		if whole < len(r.payload) {
			return true
		}
		s.p.queue = s.p.queue[1:]
		h := r.Header
		h.SetPayload(len(r.payload))
		w.Frame(&h, r.payload)
	}
	return false
}

func (s *playedSession) Greet(g *carrier.Greeting) error {
	defer s.p.signal()
	return s.Session.Greet(g)
}

func (s *playedSession) Deliver(h *carrier.Header, payload []byte) error {
	defer s.p.signal()
	s.p.got = append(s.p.got, recordedFrame{*h, append([]byte(nil), payload...)})
	return nil
}

func (s *playedSession) Refused(bye carrier.Bye) {
	defer s.p.signal()
	s.p.refused = append(s.p.refused, bye)
	s.Session.Refused(bye)
}

func (s *playedSession) Fail(err error) {
	defer s.p.signal()
	s.p.failed = append(s.p.failed, err)
	s.Session.Fail(err)
}
