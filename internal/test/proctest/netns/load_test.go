//go:build linux

package netns

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	regionSize = 1 << 20
	piece      = 64 << 10 // of one pull
	most       = 1000     // calls under way
)

// A childConfig is the configuration of a child.
type childConfig struct {
	Listen      string
	PeerTimeout time.Duration
	KeepAlive   time.Duration
	Relays      []relaySpec // if any, it is no program but these
	Cert, Key   string      // files; with them there is TLS over udp
}

// A report is a child's output about one load.
type report struct {
	Peer        string
	Calls       int // that succeeded
	Pulls       int
	Errors      map[string]int
	Wrong       int // answers, bytes and losses that are not what they should be
	Outstanding int
	Longest     time.Duration // of the calls
	LongestPull time.Duration
	Good        time.Time // when the newest of the operations that ended well was begun
	Lost        []time.Time
	LastError   string
	LastWrong   string
	Ran, Twice  int // requests that this process has run, and those of them that it ran more than once
}

// A program echoes, owns a region, and calls the addresses that it gets.
type program struct {
	hctx  *hg.Context
	loads []*load
	ran   map[[64]byte]int // how often each request has run; no two are the same
}

// runProgram is the main function of a child. Each line of its standard input is a command, each of
// which is answered by a line:
//
//	load ADDR RATE   begin to call ADDR, that many times a second; with 20 pulls a second if RATE ends in +, one after another
//	                 if it ends in ++
//	rest             start nothing more
//	report           all reports as JSON
func runProgram(s childConfig) error {
	secret, err := qs.LoadTLS(s.Cert, s.Key, s.Cert)
	if err != nil {
		return err
	}
	if secret != nil {
		secret.ServerName = "127.0.0.1"
	}
	cls, err := hg.Open(s.Listen, hg.Config{NA: na.Config{
		PeerTimeout: s.PeerTimeout, Envelopes: most, Spin: -1,
		Plugins: []na.Plugin{tcp.New(tcp.Options{KeepAlive: s.KeepAlive}), udp.New(udp.Options{Trusted: true, TLS: secret})},
	}})
	if err != nil {
		return err
	}
	p := &program{ran: map[[64]byte]int{}}
	if p.hctx, err = cls.NewContext(); err != nil {
		return err
	}
	region := make([]byte, regionSize)
	for i := 0; i < len(region); i += 8 {
		binary.LittleEndian.PutUint64(region[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	own, err := bulk.Create(p.hctx, bulk.Options{Access: bulk.ReadOnly}, region)
	if err != nil {
		return err
	}
	if _, err := cls.Register("echo", func(h hg.Request) error {
		in, err := h.InputRaw()
		if err != nil {
			return err
		}
		p.ran[[64]byte(in)]++
		return h.RespondRaw(in, nil)
	}); err != nil {
		return err
	}
	if _, err := cls.Register("expose", func(h hg.Request) error { return h.Respond(own, nil) }); err != nil {
		return err
	}
	p.hctx.OnFault(func(peer na.Addr, err error) {
		for _, l := range p.loads {
			if peer.Named() == l.peer {
				l.Lost = append(l.Lost, time.Now())
				if na.CodeOf(err) != na.ErrPeerLost {
					l.Wrong++
					l.LastWrong = fmt.Sprintf("lost with %v", err)
				}
			}
		}
	})
	lines := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
			p.hctx.Wake()
		}
		os.Exit(0)
	}()
	fmt.Println(cls.Addr())
	for {
		select {
		case line := <-lines:
			if err := p.runCommand(line, region); err != nil {
				return err
			}
		default:
		}
		for _, l := range p.loads {
			l.issueCall()
		}
		_ = p.hctx.Progress(2 * time.Millisecond)
		p.hctx.Trigger(0)
	}
}

func (p *program) runCommand(line string, region []byte) error {
	words := strings.Fields(line)
	switch words[0] {
	case "load":
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		peer, err := p.hctx.LookupWait(ctx, words[1])
		if err != nil {
			return err
		}
		l := &load{p: p, peer: peer, begun: time.Now(), want: region, report: report{Peer: words[1], Errors: map[string]int{}}}
		rate, eager := strings.CutSuffix(words[2], "++")
		rate, pulls := strings.CutSuffix(rate, "+")
		l.gap = 50 * time.Millisecond
		if eager {
			l.gap = 0
		}
		if _, err := fmt.Sscan(rate, &l.rate); err != nil {
			return err
		}
		if pulls || eager {
			l.local = make([]byte, piece)
			if l.mem, err = bulk.Create(p.hctx, bulk.Options{Access: bulk.LocalOnly}, l.local); err != nil {
				return err
			}
		}
		p.loads = append(p.loads, l)
	case "rest":
		for _, l := range p.loads {
			l.rate = 0
		}
	case "report":
		var all []report
		for _, l := range p.loads {
			r := l.report
			r.Ran = len(p.ran)
			for _, n := range p.ran {
				if n > 1 {
					r.Twice++
				}
			}
			for _, since := range l.flying {
				r.Longest = max(r.Longest, time.Since(since))
			}
			all = append(all, r)
		}
		b, err := json.Marshal(all)
		if err != nil {
			return err
		}
		fmt.Println(string(b))
		return nil
	}
	fmt.Println("ok")
	return nil
}

// A load is the calls to one peer.
type load struct {
	p      *program
	peer   na.Addr
	rate   int
	begun  time.Time
	issued int
	idle   []*hg.Handle
	flying map[*hg.Handle]time.Time
	want   []byte

	mem     *bulk.Handle // nil without pulls
	local   []byte
	remote  *bulk.Handle
	pulling bool
	offset  int64
	pulled  time.Time
	gap     time.Duration // between pulls
	report
}

// issueCall starts what is due. What could not be started in time is not made up for.
func (l *load) issueCall() {
	if l.rate == 0 {
		return
	}
	due := int(time.Since(l.begun).Seconds() * float64(l.rate))
	for ; l.issued < due; l.issued++ {
		if l.Outstanding < most {
			l.call()
		}
	}
	if l.mem != nil && !l.pulling && time.Since(l.pulled) > l.gap {
		l.pull()
	}
}

func (l *load) newHandle(name string) *hg.Handle {
	h, err := l.p.hctx.Create(l.peer, hg.HashName(name))
	if err != nil {
		panic(err)
	}
	return h
}

func (l *load) call() {
	var h *hg.Handle
	if n := len(l.idle); n > 0 {
		h, l.idle = l.idle[n-1], l.idle[:n-1]
	} else {
		h = l.newHandle("echo")
	}
	if l.flying == nil {
		l.flying = map[*hg.Handle]time.Time{}
	}
	msg := make([]byte, 64)
	binary.LittleEndian.PutUint64(msg[8:], uint64(l.issued))
	begun := time.Now()
	if err := h.ForwardRaw(msg, func(h *hg.Handle, err error) {
		l.Outstanding--
		delete(l.flying, h)
		if err == nil {
			out, outErr := h.OutputRaw()
			if outErr != nil || !bytes.Equal(out, msg) {
				l.Wrong++
				l.LastWrong = fmt.Sprintf("%v: got %x, want %x", outErr, out, msg)
			}
			l.Calls++
		}
		l.Longest = max(l.Longest, time.Since(begun))
		l.handleEnd(begun, err)
		l.idle = append(l.idle, h)
	}); err != nil {
		panic(err)
	}
	l.flying[h] = begun
	l.Outstanding++
}

// handleEnd counts an operation that has.
func (l *load) handleEnd(begun time.Time, err error) {
	if err != nil {
		l.Errors[na.CodeOf(err).Error()]++
		l.LastError = err.Error()
	} else if begun.After(l.Good) {
		l.Good = begun
	}
}

// pull pulls a piece of the peer's region; the first time it requests the region.
func (l *load) pull() {
	l.pulling = true
	l.Outstanding++
	begun := time.Now()
	ended := func(err error) {
		l.Outstanding--
		l.pulling, l.pulled = false, time.Now()
		l.LongestPull = max(l.LongestPull, time.Since(begun))
		l.handleEnd(begun, err)
	}
	if l.remote == nil {
		if err := l.newHandle("expose").Forward(nil, func(h *hg.Handle, err error) {
			if err == nil {
				l.remote = &bulk.Handle{}
				err = h.Output(l.remote)
			}
			if err != nil {
				l.remote = nil
			}
			ended(err)
			h.Close()
		}); err != nil {
			panic(err)
		}
		return
	}
	l.offset = (l.offset + piece) % regionSize
	at := l.offset
	clear(l.local)
	if _, err := bulk.Transfer(l.p.hctx, bulk.Spec{
		Dir: bulk.Pull, Peer: l.peer, Remote: l.remote, RemoteOffset: at, Local: l.mem, Size: piece,
	}, func(_ *bulk.Op, err error) {
		if err == nil {
			l.Pulls++
			if !bytes.Equal(l.local, l.want[at:at+piece]) {
				l.Wrong++
			}
		}
		ended(err)
	}); err != nil {
		panic(err)
	}
}
