package soak

import (
	"encoding/binary"
	"errors"
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
	rpcEcho   = "qs/soak/echo"   // the input comes back
	rpcGrow   = "qs/soak/grow"   // token and length: so many bytes come back
	rpcLater  = "qs/soak/later"  // as echo, but later
	rpcSilent = "qs/soak/silent" // no answer
	rpcFail   = "qs/soak/fail"   // an error
	rpcPanic  = "qs/soak/panic"  // what its name says
	rpcNote   = "qs/soak/note"   // one-way
	rpcPull   = "qs/soak/pull"   // the target pulls the memory behind the token
	rpcPush   = "qs/soak/push"   // or pushes to it
)

var rpcs = []string{rpcEcho, rpcGrow, rpcLater, rpcSilent, rpcFail, rpcPanic, rpcNote, rpcPull, rpcPush}

// errWrong is what a target says that was sent wrong bytes.
const errWrong = "these are not the bytes of the call"

// A server is the target of a soak, in a process of its own.
type server struct {
	log *os.File

	mu   sync.Mutex
	kept []hg.Incoming // that are answered later
}

// Target serves the calls of a soak at addr, until the standard input ends. It writes the token of each handler that begins to
// a file, and calls listening with its address.
func Target(addr, log string, cfg hg.Config, listening func(addr string)) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // handlers panic on purpose
	s := &server{}
	var err error
	if s.log, err = os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	class, err := hg.Open(addr, cfg)
	if err != nil {
		return err
	}
	for _, name := range rpcs {
		if _, err := class.RegisterRPC(hg.RPC{Name: name, OneWay: name == rpcNote, Handler: s.handler(name)}); err != nil {
			return err
		}
	}
	hctx, err := class.NewContext()
	if err != nil {
		return err
	}
	listening(hctx.Self().String())
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

// handler serves an RPC: first of all it writes down that it began.
func (s *server) handler(name string) hg.Handler {
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
		case rpcEcho:
			return h.RespondRaw(in, nil)
		case rpcGrow:
			return h.RespondRaw(tokenBytes(in[:8:8], token, int(binary.LittleEndian.Uint32(in[8:]))), nil)
		case rpcLater:
			if err := h.Detach(); err != nil {
				return err
			}
			s.keep(h)
		case rpcFail:
			return errors.New("asked to fail")
		case rpcPanic:
			panic("asked to panic")
		case rpcPull, rpcPush:
			return move(h, name == rpcPush, token, in[8:])
		}
		return nil
	}
}

// keep holds a request back; the oldest of many is answered.
func (s *server) keep(h hg.Incoming) {
	s.mu.Lock()
	s.kept = append(s.kept, h)
	s.mu.Unlock()
	s.answer(8)
}

// answer answers the oldest requests until only so many are left.
func (s *server) answer(left int) {
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

// move pulls from the origin's memory or pushes to it, and answers when that has ended.
func move(h hg.Incoming, push bool, token uint64, descriptor []byte) error {
	remote := &bulk.Handle{}
	if err := remote.UnmarshalBinary(descriptor); err != nil {
		return err
	}
	if remote.Len() > maxBulk {
		return errors.New(errWrong)
	}
	spec := bulk.Spec{Dir: bulk.Pull, Peer: h.Peer(), Remote: remote, Size: remote.Len(), Chunk: 64 << 10}
	buf := make([]byte, remote.Len())
	if push {
		spec.Dir = bulk.Push
		fillToken(buf, ^token)
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
		case !push && !isToken(buf, token):
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

// tokenBytes appends the n bytes that follow a token.
func tokenBytes(b []byte, token uint64, n int) []byte {
	at := len(b)
	b = append(b, make([]byte, min(n, maxBulk))...)
	fillToken(b[at:], token)
	return b
}

// fillToken writes bytes that depend on the token and their place.
func fillToken(b []byte, token uint64) {
	for i := range b {
		b[i] = patternAt(i) ^ byte(token*0x9e3779b97f4a7c15>>56)
	}
}

func isToken(b []byte, token uint64) bool {
	x := byte(token * 0x9e3779b97f4a7c15 >> 56)
	for i, v := range b {
		if v != patternAt(i)^x {
			return false
		}
	}
	return true
}

// patternAt is a pattern in which a piece at a wrong place is noticed.
func patternAt(i int) byte { return byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 }
