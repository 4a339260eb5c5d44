package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// The RPCs of qs soak. The input begins with the call's token; so does every answer.
const (
	soakEcho   = "qs/soak/echo"   // the input comes back
	soakGrow   = "qs/soak/grow"   // token and length: so many bytes come back
	soakLater  = "qs/soak/later"  // as echo, but later
	soakSilent = "qs/soak/silent" // no answer
	soakFail   = "qs/soak/fail"   // an error
	soakPanic  = "qs/soak/panic"  // what its name says
	soakNote   = "qs/soak/note"   // one-way
	soakPull   = "qs/soak/pull"   // the target pulls the memory behind the token
	soakPush   = "qs/soak/push"   // or pushes to it
)

var soakRPCs = []string{soakEcho, soakGrow, soakLater, soakSilent, soakFail, soakPanic, soakNote, soakPull, soakPush}

// errWrong is what a target says that was sent wrong bytes.
const errWrong = "these are not the bytes of the call"

// A soakServer is the target of a soak, in a process of its own.
type soakServer struct {
	log *os.File

	mu   sync.Mutex
	kept []hg.Incoming // that are answered later
}

// runSoakTarget is that process.
func runSoakTarget(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("soaktarget [flags] ADDRESS", flag.ContinueOnError)
	var n network
	n.peerFlags(fs)
	log := fs.String("log", "", "`file` for the tokens of handlers that begin")
	if err := parse(fs, args, 1, 1); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // handlers panic on purpose
	s := &soakServer{}
	var err error
	if s.log, err = os.OpenFile(*log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	cfg, err := soakConfig(&n)
	if err != nil {
		return err
	}
	class, err := hg.Open(fs.Arg(0), cfg)
	if err != nil {
		return err
	}
	for _, name := range soakRPCs {
		if _, err := class.RegisterRPC(hg.RPC{Name: name, OneWay: name == soakNote, Handler: s.handler(name)}); err != nil {
			return err
		}
	}
	hctx, err := class.NewContext()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, ready+hctx.Self().String())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = class.Close()
	}()
	for {
		if err := hctx.Progress(20 * time.Millisecond); err != nil && !errors.Is(err, hg.ErrTimeout) {
			return nil
		}
		hctx.Trigger(0)
		s.answer(0)
	}
}

func soakConfig(n *network) (hg.Config, error) {
	cfg, err := n.config()
	cfg.NA.Envelopes = 0 // the default: the load exceeds it
	return cfg, err
}

// handler serves an RPC: first of all it writes down that it began.
func (s *soakServer) handler(name string) hg.Handler {
	return func(h hg.Incoming) error {
		in, err := h.InputRaw()
		if err != nil {
			return err
		}
		if len(in) < 8 {
			return errors.New(errWrong)
		}
		if _, err := s.log.Write(in[:8]); err != nil {
			panic(err) // without its log a target is worth nothing
		}
		token := binary.LittleEndian.Uint64(in)
		switch name {
		case soakEcho:
			return h.RespondRaw(in, nil)
		case soakGrow:
			return h.RespondRaw(soakBytes(in[:8:8], token, int(binary.LittleEndian.Uint32(in[8:]))), nil)
		case soakLater:
			if err := h.Detach(); err != nil {
				return err
			}
			s.keep(h)
		case soakFail:
			return errors.New("asked to fail")
		case soakPanic:
			panic("asked to panic")
		case soakPull, soakPush:
			return soakMove(h, name == soakPush, token, in[8:])
		}
		return nil
	}
}

// keep holds a request back; the oldest of many is answered.
func (s *soakServer) keep(h hg.Incoming) {
	s.mu.Lock()
	s.kept = append(s.kept, h)
	s.mu.Unlock()
	s.answer(8)
}

// answer answers the oldest requests until only so many are left.
func (s *soakServer) answer(left int) {
	s.mu.Lock()
	n := max(len(s.kept)-left, 0)
	old := s.kept[:n:n]
	s.kept = s.kept[n:]
	s.mu.Unlock()
	for _, h := range old {
		if in, err := h.InputRaw(); err == nil {
			_ = h.RespondRaw(in, nil)
		}
	}
}

// soakMove pulls from the origin's memory or pushes to it, and answers when that has ended.
func soakMove(h hg.Incoming, push bool, token uint64, descriptor []byte) error {
	remote := &bulk.Handle{}
	if err := remote.UnmarshalBinary(descriptor); err != nil {
		return err
	}
	if remote.Len() > maxMove {
		return errors.New(errWrong)
	}
	spec := bulk.Spec{Dir: bulk.Pull, Peer: h.Peer(), Remote: remote, Size: remote.Len(), Chunk: 64 << 10}
	buf := make([]byte, remote.Len())
	if push {
		spec.Dir = bulk.Push
		soakFill(buf, ^token)
	}
	local, err := bulk.Create(h.Queue(), bulk.Options{Access: bulk.LocalOnly}, buf)
	if err != nil {
		return err
	}
	spec.Local = local
	if err := h.Detach(); err != nil {
		return err
	}
	_, err = bulk.Transfer(h.Queue(), spec, func(_ *bulk.Op, err error) {
		switch {
		case err != nil:
			_ = h.RespondError(err, nil)
		case !push && !soakFilled(buf, token):
			_ = h.RespondError(errors.New(errWrong), nil)
		default:
			_ = h.RespondRaw(binary.LittleEndian.AppendUint64(nil, token), nil)
		}
		_ = local.Close()
	})
	if err != nil {
		_ = local.Close()
	}
	return err
}

// soakBytes appends the n bytes that follow a token.
func soakBytes(b []byte, token uint64, n int) []byte {
	at := len(b)
	b = append(b, make([]byte, min(n, maxMove))...)
	soakFill(b[at:], token)
	return b
}

// soakFill writes bytes that depend on the token and their place.
func soakFill(b []byte, token uint64) {
	for i := range b {
		b[i] = patternAt(i) ^ byte(token*0x9e3779b97f4a7c15>>56)
	}
}

func soakFilled(b []byte, token uint64) bool {
	x := byte(token * 0x9e3779b97f4a7c15 >> 56)
	for i, v := range b {
		if v != patternAt(i)^x {
			return false
		}
	}
	return true
}
