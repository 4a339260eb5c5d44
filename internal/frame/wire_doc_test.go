package frame_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

var update = flag.Bool("update", false, "write the bytes in docs/internals/WIRE.md and testdata/conversation.txt anew")

const (
	wireDoc      = "../../docs/internals/WIRE.md"
	conversation = "testdata/conversation.txt"
)

// hexBlock finds the bytes in the document: ```hex name ... ```.
var hexBlock = regexp.MustCompile("(?s)```hex ([a-z0-9-]+)\n(.*?)```")

// TestWireDocBytes has two processes talk, and compares what they send with conversation.txt, and with the part of it that WIRE.md
// shows.
func TestWireDocBytes(t *testing.T) {
	text, err := os.ReadFile(wireDoc)
	require.NoError(t, err)
	w := runConversation(t)
	shown := map[string]bool{}
	fresh := hexBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		m := hexBlock.FindStringSubmatch(block)
		shown[m[1]] = true
		if !*update {
			require.Equal(t, w.made[m[1]], m[2], "the bytes of %q in the document; write them anew with -update", m[1])
		}
		return "```hex " + m[1] + "\n" + w.made[m[1]] + "```"
	})
	require.True(t, shown["request"], "the document does not show a request")
	all := "Two processes talk: the frames that they send, and the bulk handles inside them. Made by go test ./internal/frame -update.\n"
	for _, name := range w.names {
		all += "\n" + name + "\n" + w.made[name]
	}
	if *update {
		require.NoError(t, os.WriteFile(wireDoc, []byte(fresh), 0o644))
		require.NoError(t, os.WriteFile(conversation, []byte(all), 0o644))
	}
	golden, err := os.ReadFile(conversation)
	require.NoError(t, err)
	require.Equal(t, string(golden), all)
}

// TestWireDocTables compares the numbers that the document gives to kinds and codes with those of the code.
func TestWireDocTables(t *testing.T) {
	text, err := os.ReadFile(wireDoc)
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\|(\d+)\|([A-Z]+)\|`)
	kinds := map[int]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[1])
		kinds[n] = m[2]
	}
	for n := 1; n < 256; n++ {
		if got := frame.Kind(n).String(); !strings.HasPrefix(got, "KIND") && kinds[n] != got {
			t.Errorf("kind %d: got %q in the document, want %q", n, kinds[n], got)
		} else if strings.HasPrefix(got, "KIND") && kinds[n] != "" {
			t.Errorf("kind %d: the document has %q, the code has none", n, kinds[n])
		}
	}
	_, section, _ := strings.Cut(string(text), "\n## 12. Codes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	codes := map[int]string{}
	for _, m := range regexp.MustCompile("(\\d+)\\s`(\\w+)`").FindAllStringSubmatch(section, -1) {
		n, _ := strconv.Atoi(m[1])
		codes[n] = m[2]
	}
	require.Equal(t, codesByNumber(t), codes)
}

// codesByNumber returns the codes of package na/codes by their numbers.
func codesByNumber(t *testing.T) map[int]string {
	src, err := os.ReadFile("../../na/codes/codes.go")
	require.NoError(t, err)
	// Name, and number if it does not follow from the line above.
	constant := regexp.MustCompile(`^\t(\w+)(?:\s+Code = (\d+)(?: \+ iota)?)?(?:\s+//.*)?$`)
	codes, last := map[int]string{}, -1
	for line := range strings.Lines(string(src)) {
		m := constant.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		switch {
		case m == nil:
			last = -1
		case m[2] != "":
			last, _ = strconv.Atoi(m[2])
			codes[last] = m[1]
		case last >= 0:
			last++
			codes[last] = m[1]
		}
	}
	for n := range 256 {
		if known := !strings.HasSuffix(na.Code(n).Error(), strconv.Itoa(n)); known != (codes[n] != "") {
			t.Errorf("code %d: got %q in the source, which has a text: %t", n, codes[n], known)
		}
	}
	return codes
}

// runConversation lets an origin and a target talk and returns what they send.
func runConversation(t *testing.T) *wire {
	w := &wire{t: t, made: map[string]string{}, targets: map[string]carrier.Class{}, carriers: map[carrier.Core]*recordingCarrier{}}
	tcls, target := w.open("tcp://10.0.0.7:9000", hg.Config{})
	ocls, origin := w.open("tcp://", hg.Config{})
	w.origin = origin.NA()

	mem := []byte("sixteen bytes ..")
	var late hg.Request
	big := make([]byte, 70_000) // longer than goes inline
	handlers := map[string]hg.Handler{
		"greet": func(h hg.Request) error { return h.RespondRaw([]byte("hello, world"), nil) },
		"big":   func(h hg.Request) error { return h.RespondRaw(big, nil) },
		"late":  func(h hg.Request) error { late = h; return h.Detach() },
		"move": func(h hg.Request) error {
			var remote bulk.Handle
			in, err := h.InputRaw()
			if err == nil {
				err = remote.UnmarshalBinary(in[1:])
			}
			if err != nil {
				return err
			}
			local, err := bulk.Create(target, bulk.Options{Access: bulk.LocalOnly}, make([]byte, remote.Len()))
			if err != nil {
				return err
			}
			if err := h.Detach(); err != nil {
				return err
			}
			spec := bulk.Spec{Dir: bulk.Dir(in[0]), Peer: h.Peer(), Remote: &remote, Local: local, Size: remote.Len()}
			_, err = bulk.Transfer(target, spec, func(_ *bulk.Op, err error) {
				if err == nil {
					err = h.RespondRaw(nil, nil)
				}
				if err != nil {
					t.Error(err)
				}
			})
			return err
		},
	}
	names := []string{"greet", "big", "late", "move"}
	for _, name := range names {
		_, err := tcls.Register(name, handlers[name])
		require.NoError(t, err)
	}
	for _, name := range append(names, "gone") {
		_, err := ocls.Register(name, nil)
		require.NoError(t, err)
	}
	call := func(name string, in []byte) (*hg.Handle, *error) {
		h, err := origin.Create(target.Self(), hg.HashName(name))
		require.NoError(t, err)
		ended := new(error)
		*ended = codes.ErrBusy
		require.NoError(t, h.ForwardRaw(in, func(_ *hg.Handle, err error) { *ended = err }))
		for range 20 {
			w.drive(origin, target)
		}
		return h, ended
	}

	_, ended := call("greet", []byte("hello"))
	require.NoError(t, *ended)
	w.cut("hello", frame.Hello, true, "answer", frame.Hello, false, "request", frame.Unexpected, true, "response", frame.Expected, false)

	_, ended = call("gone", nil)
	require.ErrorIs(t, *ended, hg.ErrRefused)
	w.cut("error-response", frame.Expected, false)

	region, err := bulk.Create(origin, bulk.Options{Access: bulk.ReadWrite}, mem)
	require.NoError(t, err)
	key, err := region.MarshalBinary()
	require.NoError(t, err)
	w.keep("bulk-handle", dump(key))
	_, ended = call("move", append([]byte{byte(bulk.Pull)}, key...))
	require.NoError(t, *ended)
	w.cut("get", frame.Get, false, "get-data", frame.Data, true, "get-done", frame.Done, true)
	_, ended = call("move", append([]byte{byte(bulk.Push)}, key...))
	require.NoError(t, *ended)
	w.cut("put", frame.Put, false, "put-data", frame.Data, false, "put-done", frame.Done, true)
	small, err := bulk.Create(target, bulk.Options{Access: bulk.ReadOnly, Bind: true}, []byte("eager"))
	require.NoError(t, err)
	key, err = small.MarshalBinary()
	require.NoError(t, err)
	w.keep("bulk-handle-eager", dump(key))

	_, ended = call("big", nil)
	require.NoError(t, *ended)
	w.cut("more-response", frame.Expected, false, "more-get", frame.Get, true, "giveback", frame.GiveBack, true)
	_, ended = call("big", nil)
	require.NoError(t, *ended)
	w.cut("body", frame.Body, false, "body-response", frame.Expected, false)

	h, ended := call("late", nil)
	h.Cancel()
	origin.Trigger(0)
	require.ErrorIs(t, *ended, codes.ErrCanceled)
	require.NoError(t, late.RespondRaw(make([]byte, na.MaxBody+1), nil)) // longer than goes beside a message
	for range 20 {
		w.drive(origin, target)
	}
	w.cut("late-response", frame.Expected, false, "dropped", frame.Dropped, true)

	_, ended = call("late", nil)
	for range 3 { // nothing arrives: package na probes
		w.now += time.Second
		w.drive(origin, target)
	}
	w.cut("ping", frame.Ping, true, "pong", frame.Pong, false)
	require.NoError(t, late.RespondError(codes.ErrNoResponse, nil))
	for range 20 {
		w.drive(origin, target)
	}
	require.ErrorIs(t, *ended, codes.ErrNoResponse)
	w.cut("no-response", frame.Expected, false)

	for range 9 { // enough to free a quarter of the envelopes
		call("late", nil)
	}
	w.cut("credit", frame.Credit, false)
	require.NoError(t, ocls.Close())
	w.drive(origin, target)
	w.cut("goaway", frame.Goaway, true)
	return w
}

// A wire joins processes in memory and keeps the frames that they send.
type wire struct {
	t        *testing.T
	now      time.Duration
	rand     byte
	targets  map[string]carrier.Class
	carriers map[carrier.Core]*recordingCarrier
	origin   *na.Context
	sent     []sentFrame
	made     map[string]string // bytes in words, by name
	names    []string          // in the order in which they were made
}

type sentFrame struct {
	bytes      []byte
	fromOrigin bool
}

// cut gives names to the first frames of the given kinds and directions that were sent since the last cut.
func (w *wire) cut(what ...any) {
	w.t.Helper()
	for ; len(what) > 0; what = what[3:] {
		name, kind, fromOrigin := what[0].(string), what[1].(frame.Kind), what[2].(bool)
		for _, f := range w.sent {
			if h, err := frame.Parse(f.bytes); err == nil && h.Kind == kind && f.fromOrigin == fromOrigin && w.made[name] == "" {
				w.keep(name, h.String()+"\n"+dump(f.bytes))
			}
		}
		if w.made[name] == "" {
			w.t.Errorf("the conversation has no %v for %q", kind, name)
		}
	}
	w.sent = nil
}

func (w *wire) keep(name, bytes string) {
	w.made[name] = bytes
	w.names = append(w.names, name)
}

// dump prints bytes in lines of 16: offset, hexadecimal, text.
func dump(b []byte) string {
	var s strings.Builder
	for at := 0; at < len(b); at += 16 {
		line := b[at:min(at+16, len(b))]
		text := bytes.Clone(line)
		for i, c := range text {
			if c <= ' ' || c > '~' || c == '`' {
				text[i] = '.'
			}
		}
		fmt.Fprintf(&s, "%04x  %-47s  %s\n", at, fmt.Sprintf("% x", line), text)
	}
	return s.String()
}

func (w *wire) open(addr string, cfg hg.Config) (*hg.Class, *hg.Context) {
	cfg.NA.Plugins = []na.Plugin{w}
	cls, err := hg.Open(addr, cfg)
	require.NoError(w.t, err)
	hctx, err := cls.NewContext()
	require.NoError(w.t, err)
	return cls, hctx
}

func (w *wire) drive(hctxs ...*hg.Context) {
	for _, hctx := range hctxs {
		_ = hctx.Progress(0)
		hctx.Trigger(0)
	}
}

// Scheme implements na.Plugin.
func (w *wire) Scheme() string { return "tcp" }

// Open implements carrier.Plugin.
func (w *wire) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	n := &carrier.Network{
		Names: &recordingCarrier{},
		NewCarrier: func(e carrier.Core) (carrier.Carrier, error) {
			w.carriers[e] = &recordingCarrier{w: w, e: e}
			return w.carriers[e], nil
		},
	}
	if rest != "" {
		n.Listen = "tcp://" + rest
	}
	w.targets[n.Listen] = class
	return n, nil
}

// Now implements simhook.Clock.
func (w *wire) Now() time.Duration { return w.now }

// Driven implements simhook.Clock.
func (w *wire) Driven() bool { return true }

// Rand implements simhook.Clock with bytes that are easy to find again: a0 a1 a2 …
func (w *wire) Rand(b []byte) {
	for i := range b {
		b[i] = 0xa0 + w.rand
		w.rand = (w.rand + 1) % 0x60
	}
}

// A recordingCarrier is a carrier without limits.
type recordingCarrier struct {
	w    *wire
	e    carrier.Core
	ends []*end

	buffers framing.Buffers
}

// An end is one side of a connection.
type end struct {
	c      *recordingCarrier
	in     framing.In
	out    framing.Out
	rx     []byte
	other  *end
	origin bool
	gone   bool
}

func (c *recordingCarrier) Check(string) error { return nil }
func (c *recordingCarrier) Resolve(text string, done func(string, error)) func() {
	done(text, nil)
	return nil
}

func (c *recordingCarrier) Dial(l carrier.Session) {
	to := c.w.carriers[c.w.targets[l.Name()].Context(l.Target())]
	mine, theirs := &end{c: c, origin: true}, &end{c: to}
	for _, x := range []*end{mine, theirs} {
		x.in.Buffers, x.out.Buffers = &x.c.buffers, &x.c.buffers
	}
	mine.other, theirs.other = theirs, mine
	mine.in.Session, mine.out.Session = l, l
	l.SetConn(mine)
	theirs.in.Greet = func(g *frame.Greeting) error {
		l, err := to.e.Admit(to, theirs, g, true)
		theirs.in.Session, theirs.out.Session = l, l
		return err
	}
	c.ends, to.ends = append(c.ends, mine), append(to.ends, theirs)
}

func (c *recordingCarrier) Flush(ls []carrier.Session) {
	for _, l := range ls {
		if x, ok := l.Conn().(*end); ok {
			x.send()
		}
	}
}

func (c *recordingCarrier) Cut(l carrier.Session, bye frame.Bye) {
	if x, ok := l.Conn().(*end); ok && !x.gone {
		x.gone = true
		x.put(bye.Frame())
	}
}

func (c *recordingCarrier) Poll(time.Duration) time.Duration {
	for _, x := range c.ends {
		for len(x.rx) > 0 && !x.gone {
			x.take()
		}
		c.e.Lock()
		x.send()
		c.e.Unlock()
	}
	return 0
}
func (c *recordingCarrier) Lingering(time.Duration) bool { return false }
func (c *recordingCarrier) Shut()                        {}
func (c *recordingCarrier) Release()                     {}

// Drive implements simhook.Driver.
func (c *recordingCarrier) Drive(_ time.Duration, ready func() bool) bool {
	c.e.(simhook.Core).Poll(c.w.now)
	return ready()
}

func (c *recordingCarrier) Wake()      {}
func (c *recordingCarrier) FlushSoon() {}

// take reads what has arrived.
func (x *end) take() {
	n := 0
	for _, to := range x.in.Scatter(nil) {
		n += copy(to, x.rx[n:])
	}
	x.rx = x.rx[n:]
	x.in.Got(n)
	x.c.e.Lock()
	if err := x.in.Parse(); err != nil {
		x.c.w.t.Error(err)
	}
	x.c.e.Unlock()
}

// send writes what the session has. Locked.
func (x *end) send() {
	for !x.gone && x.out.Session != nil && x.out.Fill() {
		b := bytes.Join(x.out.Gather(nil), nil)
		x.out.Wrote(len(b))
		x.put(b)
	}
}

// put hands whole frames to the other side, and keeps them.
func (x *end) put(b []byte) {
	x.other.rx = append(x.other.rx, b...)
	for len(b) > 0 {
		n := frame.HeaderSize + int(binary.LittleEndian.Uint32(b))
		x.c.w.sent = append(x.c.w.sent, sentFrame{b[:n:n], x.origin})
		b = b[n:]
	}
}
