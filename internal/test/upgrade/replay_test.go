//go:build linux

package upgrade_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// transports are those that the conversations are replayed over.
var transports = []struct {
	name, listen string
	plugin       func(secure *tls.Config) carrier.Plugin
}{
	{"tcp", "tcp://127.0.0.1:0", func(*tls.Config) carrier.Plugin { return tcp.New(tcp.Options{}) }},
	{"tcp-tls", "tcp://127.0.0.1:0", func(secure *tls.Config) carrier.Plugin { return tcp.New(tcp.Options{TLS: secure}) }},
	{"tcp-portable", "tcp://127.0.0.1:0", func(*tls.Config) carrier.Plugin { return tcp.New(tcp.Options{Portable: true}) }},
	{"udp", "udp://127.0.0.1:0", func(*tls.Config) carrier.Plugin { return udp.New(udp.Options{}) }},
	{"udp-tls", "udp://127.0.0.1:0", func(secure *tls.Config) carrier.Plugin { return udp.New(udp.Options{TLS: secure}) }},
	{"sm", "sm://*", func(*tls.Config) carrier.Plugin { return sm.New(sm.Options{}) }},
}

// A site is a transport at which a test has a live side and players.
type site struct {
	*testing.T
	listen string
	plugin func() carrier.Plugin
	old    map[string]recordedFrame // the conversation of one release
}

// eachSite runs f over every transport, with the conversation of each release.
func eachSite(t *testing.T, f func(s *site)) {
	cert := testcert.New()
	secure := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: testcert.Pool(cert), ClientCAs: testcert.Pool(cert), ClientAuth: tls.RequireAndVerifyClientCert}
	all := conversations(t)
	for _, tr := range transports {
		for version, frames := range all {
			t.Run(tr.name+"/"+version, func(t *testing.T) {
				t.Parallel()
				f(&site{t, tr.listen, func() carrier.Plugin { return tr.plugin(secure) }, frames})
			})
		}
	}
}

// A liveNode is a process of today.
type liveNode struct {
	cls  *hg.Class
	hctx *hg.Context
}

// live opens one that answers "greet".
func (s *site) live() *liveNode {
	cls, err := hg.Open(s.listen, hg.Config{NA: na.Config{Plugins: []na.Plugin{s.plugin()}}})
	require.NoError(s, err)
	hctx, err := cls.NewContext()
	require.NoError(s, err)
	_, err = cls.Register("greet", func(r hg.Request) error { return r.RespondRaw([]byte("hello, world"), nil) })
	require.NoError(s, err)
	_, err = cls.Register("gone", nil)
	require.NoError(s, err)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			_ = hctx.Progress(5 * time.Millisecond)
			hctx.Trigger(0)
		}
		_ = cls.Close()
		for !hctx.NA().Closed() {
			_ = hctx.Progress(time.Millisecond)
			hctx.Trigger(0)
		}
	}()
	s.Cleanup(func() {
		stop.Store(true)
		<-done
	})
	return &liveNode{cls, hctx}
}

// call has the live side call a method of a player. What it returns gives the outcome.
func (l *liveNode) call(t *testing.T, to na.Addr, method, in string) (wait func() (string, error)) {
	h, err := l.hctx.Create(to, hg.HashName(method))
	require.NoError(t, err)
	type outcome struct {
		out string
		err error
	}
	ended := make(chan outcome, 1)
	require.NoError(t, h.ForwardRaw([]byte(in), func(h *hg.Handle, err error) {
		out, _ := h.OutputRaw()
		ended <- outcome{string(out), err}
	}))
	return func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		select {
		case o := <-ended:
			_ = h.Close()
			return o.out, o.err
		case <-ctx.Done():
			t.Fatalf("the call of %q does not end", method)
			return "", nil
		}
	}
}

// dialer is a player that dials with a HELLO.
func (s *site) dialer(hello []byte) *player {
	scheme := s.listen[:len(s.plugin().Scheme())+3]
	return newPlayer(s.T, s.plugin(), scheme, hello)
}

// TestReplayToListener checks that a process of this release accepts the frames that each release
// before has sent as a dialer, and answers its request with the recorded bytes.
func TestReplayToListener(t *testing.T) {
	eachSite(t, func(s *site) {
		l := s.live()
		p := s.dialer(s.old["hello"].payload)
		p.dial(l.cls.Addr())
		p.sendFrames(s.old["request"])
		require.Equal(s, s.old["response"].payload, p.waitForFrame(frame.Expected).payload, "rule \"a response has the version of its request\" is broken")
		for _, name := range []string{"credit", "giveback", "dropped", "late-response", "no-response", "ping"} {
			p.sendFrames(s.old[name])
		}
		p.waitForFrame(frame.Pong)
		again := s.old["request"]
		again.Tag++
		p.sendFrames(again)
		require.Equal(s, again.Tag, p.waitForFrame(frame.Expected).Tag)
		require.Zero(s, l.hctx.NA().Stats().Violations, "rule \"a frame of the release before is read\" is broken")
	})
}

// TestReplayToDialer checks that a process of this release calls one of each release before, which
// answers with the recorded frames.
func TestReplayToDialer(t *testing.T) {
	eachSite(t, func(s *site) {
		l := s.live()
		p := newPlayer(s.T, s.plugin(), s.listen, s.old["answer"].payload)
		for _, call := range []struct{ method, in, answer, out string }{
			{"greet", "hello", "response", "hello, world"}, {"gone", "", "error-response", ""}, {"gone", "", "no-response", ""},
		} {
			wait := l.call(s.T, p.nctx.Self(), call.method, call.in)
			request := p.waitForFrame(frame.Unexpected)
			require.Equal(s, byte(4), request.payload[0], "rule \"a request has the version of its session\" is broken")
			require.True(s, bytes.HasSuffix(request.payload, []byte(call.in)))
			answer := s.old[call.answer]
			answer.Tag = request.Tag
			p.sendFrames(answer)
			out, err := wait()
			switch call.answer {
			case "response":
				require.NoError(s, err)
				require.Equal(s, call.out, out)
			case "error-response":
				require.ErrorIs(s, err, hg.ErrNoMethod)
				require.Equal(s, na.NotRun, hg.FateOf(err))
			case "no-response":
				require.ErrorIs(s, err, na.ErrNoResponse)
			}
		}
		p.sendFrames(s.old["ping"])
		p.waitForFrame(frame.Pong)
		require.Zero(s, l.hctx.NA().Stats().Violations)
	})
}

// versionRange is the value of a label with a range.
func versionRange(oldest, newest uint16) []byte {
	return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, oldest), newest)
}

// TestFuture checks that a new thing of each sort, as a later release may send it, is skipped or
// refused as section 0 of WIRE.md says, and no other session is lost.
func TestFuture(t *testing.T) {
	eachSite(t, func(s *site) {
		l := s.live()
		hello := s.old["hello"].payload
		request := func(fields byte, words int) recordedFrame {
			r := s.old["request"]
			r.payload = slices.Insert(bytes.Clone(r.payload), 24, make([]byte, 8*words)...)
			r.payload[22] = fields
			return r
		}
		other := s.dialer(hello)
		other.dial(l.cls.Addr())
		other.sendFrames(s.old["ping"])
		other.waitForFrame(frame.Pong)
		distinct := byte(1)
		player := func(hello []byte) *player {
			distinct++
			p := s.dialer(withLabel(hello, 0x0200, bytes.Repeat([]byte{distinct}, 16))) // another incarnation
			p.dial(l.cls.Addr())
			return p
		}

		p := player(withLabel(withLabel(withLabel(hello, labelVersions, append(versionRange(frame.Version, frame.Version+1), "later"...)), 0x1400, []byte("later")), labelMessages, versionRange(4, 9)))
		p.rule = "label below 0x8000, kind of frame from 128 on: skipped"
		for _, n := range []int{0, 10, 50_000} {
			p.sendFrames(recordedFrame{frame.Header{Kind: 200, Flags: 0x7e, Op: 7, Tag: 8, Credit: 32}, make([]byte, n)})
		}
		r := s.old["request"]
		p.sendFrames(r)
		require.Equal(s, s.old["response"].payload, p.waitForFrame(frame.Expected).payload, "rule %q is broken", p.rule)
		p.rule = "field behind a header: skipped"
		p.sendFrames(request(3, 3))
		require.Equal(s, s.old["response"].payload, p.waitForFrame(frame.Expected).payload, "rule %q is broken", p.rule)
		p.rule = "field that has to be understood: ErrVersion, did not run"
		p.sendFrames(request(128|3, 3))
		answer := p.waitForFrame(frame.Expected).payload
		require.Equal(s, []byte{byte(na.ErrVersion), byte(na.NotRun)}, answer[2:4], "rule %q is broken", p.rule)
		p.sendFrames(s.old["ping"])
		p.waitForFrame(frame.Pong)

		for rule, h := range map[string]frame.Header{
			"kind of frame below 128: refused, its session ends": {Kind: 29, Credit: 32},
			"flag of a frame: refused, its session ends":         {Kind: frame.Ping, Flags: frame.FlagTell, Credit: 32},
		} {
			p := player(hello)
			p.rule = rule
			p.sendFrames(recordedFrame{h, nil})
			p.waitUntil("the session ends", func() bool { return len(p.refused) > 0 })
			require.Equal(s, na.ErrProtocol, p.refused[0].Code, "rule %q is broken", rule)
			require.Contains(s, p.refused[0].Text, "unknown", "rule %q is broken", rule)
		}
		for rule, row := range map[string]struct {
			hello []byte
			text  string
		}{
			"label from 0x8000 on: refused": {withLabel(hello, 0x9234, []byte("later")), "unknown critical label 0x9234"},
			"no common version of frames: refused, with both ranges": {withLabel(hello, labelVersions, versionRange(98, 99)),
				"no common version of frames: the dialing side speaks 98 to 99, the listening side " + frame.Versions().String() + "; upgrade the listening side"},
			"an older release: refused, with both ranges": {withLabel(hello, labelVersions, versionRange(1, 2)), "upgrade the dialing side"},
			"no common version of RPC headers: refused":   {withLabel(hello, labelMessages, versionRange(98, 99)), "no common version of RPC headers"},
		} {
			p := player(row.hello)
			p.rule = rule
			p.waitUntil("the session is refused", func() bool { return len(p.refused) > 0 })
			require.Equal(s, na.ErrVersion, p.refused[0].Code, "rule %q is broken", rule)
			require.Contains(s, p.refused[0].Text, row.text, "rule %q is broken", rule)
		}
		other.rule = "what is refused ends its own session"
		other.sendFrames(s.old["ping"])
		other.waitForFrame(frame.Pong)
	})
}

// TestFutureListener checks that a process that dials one of two releases later gets an error that
// names the side to be upgraded.
func TestFutureListener(t *testing.T) {
	eachSite(t, func(s *site) {
		l := s.live()
		for name, answer := range map[string][]byte{
			"; upgrade the dialing side":   withLabel(s.old["answer"].payload, labelVersions, versionRange(98, 99)),
			"; upgrade the listening side": withLabel(s.old["answer"].payload, labelVersions, versionRange(1, 2)),
		} {
			p := newPlayer(s.T, s.plugin(), s.listen, answer)
			_, err := l.call(s.T, p.nctx.Self(), "greet", "hello")()
			require.ErrorIs(s, err, hg.ErrUnreachable)
			require.Equal(s, na.NotRun, hg.FateOf(err))
			require.ErrorContains(s, err, name)
			require.ErrorContains(s, err, fmt.Sprint("speaks ", frame.Versions()))
		}
	})
}

// TestPreviousReleaseExists checks that the commit that testdata/wire/OLD names has nodes, wherever the
// history includes it.
func TestPreviousReleaseExists(t *testing.T) {
	commit, why := previousRelease(t)
	if why != "" {
		t.Skip(why)
	}
	_, err := git("cat-file", "-e", commit+":internal/test/upgrade/node/main.go")
	require.NoError(t, err)
	_, err = os.Stat(root + "/testdata/wire/OLD")
	require.NoError(t, err)
}
