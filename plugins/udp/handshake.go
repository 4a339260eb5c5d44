package udp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/protect"
)

// A handshake is a goroutine that has TLS say who the peer is: functions of the user's run in it. What TLS says goes in pieces, which are
// acknowledged, and sent again from the first that is not.
//
//	client                                        server
//	Initial without a token  ───────────►
//	                         ◄───────────  Retry: a token          nothing is kept
//	Initial: ClientHello     ───────────►  a conn, a goroutine
//	                         ◄───────────  Initial, Handshake: ServerHello … Finished
//	Handshake: … Finished    ───────────►  the client is who it should be
//	                         ◄───────────  Handshake: acknowledged; its keys are there
//	short packets: HELLO     ───────────►  the goroutine ends
type handshake struct {
	k      *conn
	g      *tlsAcceptor
	q      *tls.QUICConn
	cfg    *tls.Config
	client bool
	to     netip.AddrPort
	via    uint8
	looked *bool // functions of the user's have looked at certificates; apart, as phase is
	token  []byte
	levels [tls.QUICEncryptionLevelApplication]level
	left   int            // bytes that the peer may say yet
	done   bool           // TLS has proven who the peer is
	up     bool           // and the connection has its keys
	acked  bool           // the peer has acknowledged something: it receives
	probed bool           // and has not since the timer has expired
	came   int            // bytes of the peer's packets
	gone   int            // bytes of TLS that were sent
	heard  bool           // something has come that is the server's
	unsent error          // why the system has not sent the last packet
	waits  func()         // it is the turn of the peer
	phase  *protect.Phase // apart: the session holds it when the handshake is over, and nothing else
}

// A level is an encryption level of RFC 9001 2.1.
type level struct {
	sealer *protect.Sealer
	opener *protect.Opener
	out    []byte // what TLS says
	acked  int    // of out
	sent   int    // of out
	in     int    // bytes that have come
	owes   bool   // an acknowledgment
}

const (
	crypto byte = 1 // acknowledged 4, offset 4, what TLS says
	closes byte = 2 // alert 1: TLS has failed

	cryptoHead = 1 + 4 + 4
	mostCrypto = arq.BaseSize - longSize - tokenSize - protect.NumberSize - cryptoHead - protect.TagSize
	firstWait  = 50 * time.Millisecond
	mostWait   = time.Second
	lastWords  = time.Second // how long a refused peer gets an answer to each packet
)

var (
	errNobody = codes.WithText(codes.ErrUnreachable, "nobody answers")
	errLate   = codes.WithText(codes.ErrUnreachable, "TLS: the peer did not end the TLS handshake in time")
)

// A remoteAlert is why the peer has ended the handshake.
type remoteAlert uint8

func (a remoteAlert) Error() string { return tls.AlertError(a).Error() }

// noTLSAlert is what a peer without TLS says.
type noTLSAlert struct{ bye frame.Bye }

func (t noTLSAlert) Error() string { return t.bye.Text }

// newHandshake prepares TLS, with cfg for this side and its role.
func newHandshake(k *conn, client bool) *handshake {
	h := &handshake{k: k, g: k.c.d.guard, waits: func() {}, client: client, to: k.to, via: k.via, left: secure.MaxClientHello + secure.MaxClientProof}
	h.phase = &protect.Phase{Leads: client, Most: h.g.most}
	looked := secure.Looks(h.g.cfg)
	h.looked = &looked
	h.cfg = secure.Forced(h.g.cfg, func(_ *tls.ClientHelloInfo, other *tls.Config) { looked = secure.Looks(other) })
	return h
}

// runAccept runs the handshake of a peer that has shown a token. waits is called when it is the peer's turn.
func runAccept(ctx context.Context, k *conn, waits func()) {
	defer k.onHandshakeEnd()
	defer k.c.e.Rescue(func(error) { k.c.shared.removeConn(k) })
	h := newHandshake(k, false)
	h.waits = waits
	h.setPeerID(k.peer)
	err := h.makeInitialKeys(k.id)
	if err == nil {
		h.q = tls.QUICServer(&tls.QUICConfig{TLSConfig: recoverInCallbacks(h.cfg, h.g.log, h.to)})
		err = h.run(ctx)
	}
	if err != nil {
		k.c.shared.removeConn(k)
	}
}

// logFailure tells of a peer whose handshake has failed.
func (h *handshake) logFailure(err error) {
	h.k.c.e.HandshakeFailed(h.to.String(), secure.Reason(err))
}

// runDial runs that of a dial.
func runDial(ctx context.Context, k *conn, name, host string) {
	defer k.onHandshakeEnd()
	defer k.c.e.Rescue(k.onDialEnd)
	h := newHandshake(k, true)
	h.left = secure.MaxServerProof
	own := &secure.Own{}
	cfg := recoverInCallbacks(own.Note(secure.Client(h.cfg, scheme, name, host)), h.g.log, h.to)
	h.q = tls.QUICClient(&tls.QUICConfig{TLSConfig: cfg})
	err := own.Wrap(h.run(ctx))
	code, coded := errors.AsType[codes.Code](err)
	switch {
	case err == nil, coded && code != codes.OK, errors.As(err, new(noTLSAlert)):
	case errors.Is(err, context.DeadlineExceeded) && h.heard:
		err = errLate
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		err = errNobody
	default:
		code = codes.ErrUnreachable
		if h.done && errors.As(err, new(remoteAlert)) { // the peer has seen the certificate of this side
			code = codes.ErrPermission
		}
		err = codes.WithText(code, "TLS: "+secure.Reason(err))
	}
	k.onDialEnd(err)
}

// setPeerID learns the peer's connection id.
func (h *handshake) setPeerID(peer uint64) {
	d, k := h.k.c.shared, h.k
	d.table.Lock()
	defer d.table.Unlock()
	if d.byPeer[k.peer] == k {
		delete(d.byPeer, k.peer)
	}
	k.peer = peer
	if d.byID[k.id] == k {
		d.byPeer[peer] = k
	}
}

// makeInitialKeys makes those of the Initial level, from the id that the server has chosen.
func (h *handshake) makeInitialKeys(id uint64) (err error) {
	client, server, err := protect.Initial(binary.BigEndian.AppendUint64(nil, id))
	if err != nil {
		return err
	}
	if h.client {
		client, server = server, client
	}
	l := &h.levels[tls.QUICEncryptionLevelInitial]
	l.acked, l.sent, l.in = 0, 0, 0
	if l.opener, err = protect.NewOpener(tls.TLS_AES_128_GCM_SHA256, client, nil); err == nil {
		l.sealer, err = protect.NewSealer(tls.TLS_AES_128_GCM_SHA256, server, nil)
	}
	return err
}

// run ends when the connection is up, for a server when the peer has shown that it knows; or with an error, which the peer is told.
func (h *handshake) run(ctx context.Context) error {
	k := h.k
	started := !h.client
	if started {
		if err := h.start(ctx); err != nil {
			return err
		}
	} else {
		h.requestToken()
	}
	defer func() {
		if h.q != nil && started {
			_ = h.q.Close()
		}
	}()
	h.waits()
	wait, moved := firstWait, 0
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for tries := 0; ; {
		if h.client && !h.heard && h.unsent != nil {
			return unsentError(h.unsent)
		}
		select {
		case <-k.done:
			return nil
		case <-ctx.Done():
			if h.done {
				return nil // the peer may have said nothing yet
			}
			return ctx.Err()
		case <-timer.C:
			if tries++; h.client && !h.heard {
				if n := k.c.sock.retriesRefused(); n > 0 && tries > n {
					return errNobody
				}
				if h.token == nil || tries%2 == 0 { // it is lost, or the peer has started again and does not know it
					h.requestToken()
				}
			}
			h.sendProbe()
			wait = min(2*wait, mostWait)
			timer.Reset(wait)
		case b := <-k.in:
			err := h.handlePacket(b, func() error {
				if started {
					return nil
				}
				started = true
				return h.start(ctx)
			})
			if ctx.Err() != nil && !h.done {
				return ctx.Err()
			}
			if err != nil {
				h.end(ctx, err)
				return err
			}
			if n := h.ackedBytes(); n > moved {
				h.waits() // what is lost next is not the fault of a path that is slow
				moved, wait = n, firstWait
				timer.Reset(wait)
			}
			if h.done && h.client && h.levels[tls.QUICEncryptionLevelHandshake].acked == len(h.levels[tls.QUICEncryptionLevelHandshake].out) {
				return nil
			}
		}
		h.flush()
	}
}

// ackedBytes counts the bytes that are known to have arrived, either way.
func (h *handshake) ackedBytes() (n int) {
	for i := range h.levels {
		n += h.levels[i].acked + h.levels[i].in
	}
	return n
}

// start has TLS begin, with our connection id, which the peer compares with the one that it sees.
func (h *handshake) start(ctx context.Context) error {
	params := binary.BigEndian.AppendUint64(nil, h.k.id)
	if !h.client {
		params = binary.BigEndian.AppendUint64(params, h.k.peer)
	}
	h.q.SetTransportParameters(params)
	if err := h.q.Start(ctx); err != nil {
		return err
	}
	return h.handleTLSEvents()
}

// requestToken wants a token.
func (h *handshake) requestToken() {
	head := longHeader{kind: initial, to: h.k.peer, from: h.k.id}
	b := head.appendTo(make([]byte, 0, askSize))
	h.unsent = h.k.c.shared.sendOne(b[:askSize], h.to, h.via)
}

// handlePacket takes a packet. One that is not the peer's is dropped.
func (h *handshake) handlePacket(b []byte, start func() error) error {
	head, ok := parseLong(b)
	if !ok {
		return nil
	}
	switch head.kind {
	case retry:
		if !h.client || h.heard || len(head.token) != tokenSize {
			return nil
		}
		again := h.token != nil && head.from == h.k.peer
		h.token = append([]byte(nil), head.token...)
		if again {
			return nil
		}
		h.setPeerID(head.from)
		if err := h.makeInitialKeys(head.from); err != nil {
			return err
		}
		return start()
	case word:
		if h.client && !h.heard && head.number < len(b) {
			return noTLSAlert{frame.ParseBye(b[head.number:])}
		}
		return nil
	}
	at := tls.QUICEncryptionLevelInitial
	if head.kind == proving {
		at = tls.QUICEncryptionLevelHandshake
	}
	l := &h.levels[at]
	if l.opener == nil || head.from != h.k.peer {
		return nil
	}
	text, ok := l.opener.Open(b, head.number)
	if !ok || len(text) < 2 {
		return nil
	}
	h.heard = true
	h.came += len(b)
	switch {
	case text[0] == closes:
		return remoteAlert(text[1])
	case text[0] != crypto || len(text) < cryptoHead:
		return nil
	}
	if acked := int(binary.BigEndian.Uint32(text[1:])); acked > l.acked && acked <= len(l.out) {
		l.acked = acked
		l.sent = max(l.sent, acked)
		h.acked = true
		h.resendLost()
	}
	offset, data := int(binary.BigEndian.Uint32(text[5:])), text[cryptoHead:]
	if len(data) == 0 {
		return nil
	}
	l.owes = true
	if offset > l.in || offset+len(data) <= l.in {
		return nil // what is missing will come again
	}
	data = data[l.in-offset:]
	if h.left -= len(data); h.left < 0 {
		return secure.ErrTooMuch
	}
	l.in += len(data)
	if err := h.q.HandleData(at, data); err != nil {
		return err
	}
	return h.handleTLSEvents()
}

// handleTLSEvents does what TLS wants.
func (h *handshake) handleTLSEvents() error {
	for {
		switch e := h.q.NextEvent(); e.Kind {
		case tls.QUICNoEvent:
			return nil
		case tls.QUICErrorEvent:
			return e.Err
		case tls.QUICSetReadSecret:
			o, err := protect.NewOpener(e.Suite, e.Data, h.keyUpdates(e.Level))
			if err != nil {
				return err
			}
			if e.Level == tls.QUICEncryptionLevelApplication {
				h.k.opener = o
			} else {
				h.levels[e.Level].opener = o
			}
		case tls.QUICSetWriteSecret:
			s, err := protect.NewSealer(e.Suite, e.Data, h.keyUpdates(e.Level))
			if err != nil {
				return err
			}
			if e.Level == tls.QUICEncryptionLevelApplication {
				h.k.sealer = s
			} else {
				h.levels[e.Level].sealer = s
			}
		case tls.QUICWriteData:
			if e.Level == tls.QUICEncryptionLevelApplication {
				return fmt.Errorf("TLS says something after the handshake")
			}
			h.levels[e.Level].out = append(h.levels[e.Level].out, e.Data...)
		case tls.QUICTransportParameters:
			want := binary.BigEndian.AppendUint64(nil, h.k.peer)
			if h.client {
				want = binary.BigEndian.AppendUint64(want, h.k.id)
			}
			if string(e.Data) != string(want) {
				return errors.New("somebody has changed the connection ids on the way")
			}
		case tls.QUICHandshakeDone:
			h.finishTLS()
		}
	}
}

// keyUpdates is what the two directions tell each other of key updates, which only application keys have.
func (h *handshake) keyUpdates(at tls.QUICEncryptionLevel) *protect.Phase {
	if at != tls.QUICEncryptionLevelApplication {
		return nil
	}
	return h.phase
}

// finishTLS takes what TLS has proven.
func (h *handshake) finishTLS() {
	state := h.q.ConnectionState()
	h.k.proof = secure.Prove(h.cfg, &state, *h.looked)
	h.done = true
}

// flush sends what has not been sent, and acknowledgments.
func (h *handshake) flush() {
	if h.done && !h.up && h.k.opener != nil && h.k.sealer != nil {
		h.up = true
		h.k.up.Store(true)
		if !h.client {
			h.k.onAcceptEnd()
		}
	}
	for i := range h.levels {
		l := &h.levels[i]
		if l.sealer == nil {
			continue
		}
		for l.sent < len(l.out) && h.maySendMore() {
			l.sent += h.sendCrypto(i, l.sent)
		}
		if l.owes {
			h.sendCrypto(i, len(l.out))
		}
	}
}

// sendCrypto sends what TLS says at a level from an offset on, as much as a packet holds, with an acknowledgment. It returns how much that is.
func (h *handshake) sendCrypto(at, from int) (n int) {
	l := &h.levels[at]
	text := binary.BigEndian.AppendUint32([]byte{crypto}, uint32(l.in))
	text = binary.BigEndian.AppendUint32(text, uint32(from))
	n = min(mostCrypto, len(l.out)-from)
	l.owes = false
	h.gone += n
	h.send(at, append(text, l.out[from:from+n]...))
	return n
}

// maySendMore reports whether more of what TLS says may be sent at once: to a client that has not shown yet that it receives all this, and not a
// token alone, three times what it has sent, and one packet.
func (h *handshake) maySendMore() bool { return h.client || h.acked || h.gone < 3*h.came }

// sendProbe sends the first packet again that is not acknowledged (RFC 9002 6.2.4). The answer says what else is lost.
func (h *handshake) sendProbe() {
	for i := range h.levels {
		if l := &h.levels[i]; l.sealer != nil && l.acked < len(l.out) {
			h.sendCrypto(i, l.acked)
			l.sent = max(l.sent, min(l.acked+mostCrypto, len(l.out)))
			h.probed = true
			return
		}
	}
}

// resendLost sends what was sent before the timer expired, and is not acknowledged, once more: a peer takes it in order only.
func (h *handshake) resendLost() {
	if !h.probed {
		return
	}
	h.probed = false
	for i := range h.levels {
		h.levels[i].sent = h.levels[i].acked
	}
}

func (h *handshake) send(at int, text []byte) {
	head := longHeader{kind: initial, to: h.k.peer, from: h.k.id, token: h.token}
	if at != int(tls.QUICEncryptionLevelInitial) {
		head.kind, head.token = proving, nil
	}
	b := head.appendTo(make([]byte, 0, arq.BaseSize))
	n := len(b)
	b = append(append(b, make([]byte, protect.NumberSize)...), text...)
	b = append(b, make([]byte, protect.TagSize)...)
	if h.levels[at].sealer.Seal(b, n) == nil {
		h.unsent = h.k.c.shared.sendOne(b, h.to, h.via)
	}
}

// end tells the peer why the handshake has failed, a peer that has dialed again whenever it says something, for a while.
func (h *handshake) end(ctx context.Context, err error) {
	var remote remoteAlert
	var alert tls.AlertError
	switch {
	case errors.As(err, &remote):
		if !h.client {
			h.logFailure(err)
		}
		return
	case errors.Is(err, secure.ErrTooMuch):
		alert = secure.Overflow
	case !errors.As(err, &alert):
		alert = 80 // internal_error
	}
	at := int(tls.QUICEncryptionLevelInitial)
	if h.levels[tls.QUICEncryptionLevelHandshake].sealer != nil {
		at = int(tls.QUICEncryptionLevelHandshake)
	}
	if h.levels[at].sealer == nil {
		return
	}
	text := []byte{closes, byte(alert)}
	h.send(at, text)
	if h.client {
		return
	}
	h.logFailure(err)
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	for {
		select {
		case <-h.k.in:
			h.send(at, text)
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// recoverInCallbacks returns cfg with functions of the user's that end nothing but a handshake when they panic. They run on a goroutine of package
// tls. The connection that they are shown has no more than an address.
func recoverInCallbacks(cfg *tls.Config, log *slog.Logger, peer netip.AddrPort) *tls.Config {
	cfg = cfg.Clone()
	caught := func(err *error) {
		if p := recover(); p != nil {
			log.Error("a function of the tls.Config panicked", "peer", peer.String(), "panic", p, "stack", string(debug.Stack()))
			*err = secure.ErrPanicked
		}
	}
	at := shownConn{net.UDPAddrFromAddrPort(peer)}
	if f := cfg.GetCertificate; f != nil {
		cfg.GetCertificate = func(hello *tls.ClientHelloInfo) (c *tls.Certificate, err error) {
			defer caught(&err)
			hello.Conn = at
			return f(hello)
		}
	}
	if f := cfg.GetClientCertificate; f != nil {
		cfg.GetClientCertificate = func(r *tls.CertificateRequestInfo) (c *tls.Certificate, err error) {
			defer caught(&err)
			return f(r)
		}
	}
	if f := cfg.GetConfigForClient; f != nil {
		cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (other *tls.Config, err error) {
			defer caught(&err)
			hello.Conn = at
			if other, err = f(hello); other != nil {
				other = recoverInCallbacks(other, log, peer)
			}
			return other, err
		}
	}
	if f := cfg.VerifyPeerCertificate; f != nil {
		cfg.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) (err error) {
			defer caught(&err)
			return f(raw, chains)
		}
	}
	if f := cfg.VerifyConnection; f != nil {
		cfg.VerifyConnection = func(s tls.ConnectionState) (err error) {
			defer caught(&err)
			return f(s)
		}
	}
	return cfg
}

// A shownConn is the connection that functions of the user's see.
type shownConn struct{ remote net.Addr }

func (s shownConn) RemoteAddr() net.Addr           { return s.remote }
func (shownConn) LocalAddr() net.Addr              { return &net.UDPAddr{} }
func (shownConn) Read([]byte) (int, error)         { return 0, net.ErrClosed }
func (shownConn) Write([]byte) (int, error)        { return 0, net.ErrClosed }
func (shownConn) Close() error                     { return nil }
func (shownConn) SetDeadline(time.Time) error      { return nil }
func (shownConn) SetReadDeadline(time.Time) error  { return nil }
func (shownConn) SetWriteDeadline(time.Time) error { return nil }
