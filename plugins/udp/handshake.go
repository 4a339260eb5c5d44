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

// A handshake performs the TLS 1.3 handshake of one connection. It runs on its own goroutine
// because user functions in the tls.Config may block. The output at each encryption level is sent
// in chunks, which the peer acknowledges and accepts in order. After a loss, chunks are
// retransmitted starting at the first unacknowledged one.
//
//	client                                        server
//	Initial without a token  ───────────►
//	                         ◄───────────  Retry: a token                 no state is kept
//	Initial: ClientHello     ───────────►  starts a conn and a goroutine
//	                         ◄───────────  Initial, Handshake: ServerHello … Finished
//	Handshake: … Finished    ───────────►  verifies the client
//	                         ◄───────────  Handshake: acknowledgment      the application keys are set
//	short packets: HELLO     ───────────►  the goroutine ends
type handshake struct {
	k      *conn
	g      *tlsAcceptor
	q      *tls.QUICConn
	cfg    *tls.Config
	client bool
	to     netip.AddrPort
	via    uint8
	// verified points to a flag that is set if user functions have verified certificates. The flag
	// is separate so that the tls.Config does not keep the handshake reachable.
	verified      *bool
	token         []byte
	levels        [tls.QUICEncryptionLevelApplication]level
	budget        int            // number of bytes of TLS messages that the peer may still send
	done          bool           // whether TLS has verified the peer
	up            bool           // whether the connection has its application keys
	acked         bool           // whether the peer has acknowledged a packet, which proves that it receives at its address
	probed        bool           // whether sendProbe has sent a packet since the last acknowledgment
	receivedBytes int            // number of bytes in the peer's packets
	sentBytes     int            // number of bytes of TLS messages sent
	gotPacket     bool           // whether an authentic packet from the peer has arrived
	unsent        error          // system's error for the last packet, if another attempt would also fail
	awaitPeer     func()         // called when it is the peer's turn to send
	phase         *protect.Phase // a pointer, so that the session retains only the Phase after the handshake
}

// A level holds the state of one encryption level (RFC 9001, Section 2.1).
type level struct {
	sealer     *protect.Sealer
	opener     *protect.Opener
	out        []byte // output of TLS at this level
	acked      int    // number of bytes of out acknowledged by the peer
	sent       int    // number of bytes of out sent
	received   int    // number of bytes of the peer's output that have arrived
	ackPending bool   // whether an acknowledgment must be sent
}

const (
	// cryptoMessage is the first byte of a message with TLS output. It is followed by the number of
	// bytes acknowledged (4 bytes), the offset (4 bytes), and the output.
	cryptoMessage byte = 1
	closeMessage  byte = 2 // first byte of a message that ends a failed handshake; followed by the alert (1 byte)

	cryptoHead = 1 + 4 + 4
	maxCrypto  = arq.BaseSize - longSize - tokenSize - protect.NumberSize - cryptoHead - protect.TagSize
	firstWait  = 50 * time.Millisecond // initial timeout before a probe
	maxWait    = time.Second           // maximum timeout; the timeout doubles with each probe
	alertTime  = time.Second           // time during which packets of a rejected peer are answered with the alert
)

var (
	errNoAnswer = codes.WithText(codes.ErrUnreachable, "no response")
	errLate     = codes.WithText(codes.ErrUnreachable, "TLS: handshake timeout")
)

// A remoteAlert is the error for a TLS alert with which the peer aborted the handshake.
type remoteAlert uint8

func (a remoteAlert) Error() string { return tls.AlertError(a).Error() }

// A noTLSAlert is the error for a notice from a peer that does not use TLS.
type noTLSAlert struct{ bye frame.Bye }

func (t noTLSAlert) Error() string { return t.bye.Text }

// newHandshake returns a handshake for k, in the role of the TLS client or server.
func newHandshake(k *conn, client bool) *handshake {
	h := &handshake{k: k, g: k.c.d.guard, awaitPeer: func() {}, client: client, to: k.to, via: k.via, budget: secure.MaxClientHello + secure.MaxClientProof}
	h.phase = &protect.Phase{Leads: client, Most: h.g.maxSealed}
	looked := secure.Looks(h.g.cfg)
	h.verified = &looked
	h.cfg = secure.Forced(h.g.cfg, func(_ *tls.ClientHelloInfo, other *tls.Config) { looked = secure.Looks(other) })
	return h
}

// runAccept runs the handshake with a peer that has sent a valid token. It calls waits each time it
// begins to wait for a packet from the peer.
func runAccept(ctx context.Context, k *conn, waits func()) {
	defer k.onHandshakeEnd()
	defer k.c.e.Rescue(func(error) { k.c.shared.removeConn(k) })
	h := newHandshake(k, false)
	h.awaitPeer = waits
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

// reportFailure reports to the context that a handshake started by the peer has failed with err.
func (h *handshake) reportFailure(err error) {
	h.k.c.e.HandshakeFailed(h.to.String(), secure.AcceptReason(err))
}

// runDial runs the handshake for a dial and passes the result to k.onDialEnd.
func runDial(ctx context.Context, k *conn, name, host string) {
	defer k.onHandshakeEnd()
	defer k.c.e.Rescue(k.onDialEnd)
	h := newHandshake(k, true)
	h.budget = secure.MaxServerProof
	own := &secure.Own{}
	cfg := recoverInCallbacks(own.Note(secure.Client(h.cfg, scheme, name, host)), h.g.log, h.to)
	h.q = tls.QUICClient(&tls.QUICConfig{TLSConfig: cfg})
	err := own.Wrap(h.run(ctx))
	code, coded := errors.AsType[codes.Code](err)
	switch {
	case err == nil, coded && code != codes.OK, errors.As(err, new(noTLSAlert)):
	case errors.Is(err, context.DeadlineExceeded) && h.gotPacket:
		err = errLate
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		err = errNoAnswer
	default:
		code = codes.ErrUnreachable
		if h.done && errors.As(err, new(remoteAlert)) { // the peer has seen this side's certificate
			code = codes.ErrPermission
		}
		err = codes.WithText(code, "TLS: "+secure.Reason(err))
	}
	k.onDialEnd(err)
}

// setPeerID sets the peer's connection ID, which the dialing side learns from a Retry packet.
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

// makeInitialKeys derives the keys of the Initial level from id, the connection ID chosen by the
// server (RFC 9001, Section 5.2).
func (h *handshake) makeInitialKeys(id uint64) (err error) {
	client, server, err := protect.Initial(binary.BigEndian.AppendUint64(nil, id))
	if err != nil {
		return err
	}
	if h.client {
		client, server = server, client
	}
	l := &h.levels[tls.QUICEncryptionLevelInitial]
	l.acked, l.sent, l.received = 0, 0, 0
	if l.opener, err = protect.NewOpener(tls.TLS_AES_128_GCM_SHA256, client, nil); err == nil {
		l.sealer, err = protect.NewSealer(tls.TLS_AES_128_GCM_SHA256, server, nil)
	}
	return err
}

// run performs the handshake until the connection has its application keys or an error occurs. If
// an error occurs, run sends the peer an alert. On the listening side, run also waits for a packet
// that shows that the peer has the keys.
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
	h.awaitPeer()
	wait, moved := firstWait, 0
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for tries := 0; ; {
		if h.client && !h.gotPacket && h.unsent != nil {
			return unsentError(h.unsent)
		}
		select {
		case <-k.done:
			return nil
		case <-ctx.Done():
			if h.done {
				return nil // the connection is usable, although the peer has not sent a short packet yet
			}
			return ctx.Err()
		case <-timer.C:
			if tries++; h.client && !h.gotPacket {
				if n := k.c.sock.retriesRefused(); n > 0 && tries > n {
					return errNoAnswer
				}
				// The Retry packet was lost, or the peer has restarted and does not accept the
				// token.
				if h.token == nil || tries%2 == 0 {
					h.requestToken()
				}
			}
			h.sendProbe()
			wait = min(2*wait, maxWait)
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
				h.awaitPeer()
				moved, wait = n, firstWait // the handshake has advanced, so reset the backoff
				timer.Reset(wait)
			}
			if h.done && h.client && h.levels[tls.QUICEncryptionLevelHandshake].acked == len(h.levels[tls.QUICEncryptionLevelHandshake].out) {
				return nil
			}
		}
		h.flush()
	}
}

// ackedBytes returns the number of bytes of TLS messages that are known to have arrived, in both
// directions together.
func (h *handshake) ackedBytes() (n int) {
	for i := range h.levels {
		n += h.levels[i].acked + h.levels[i].received
	}
	return n
}

// start starts the TLS handshake. The connection IDs are included in the transport parameters, so
// that each side detects any change made to the IDs on the path.
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

// requestToken sends an Initial packet without a token, which the server answers with a token.
func (h *handshake) requestToken() {
	head := longHeader{kind: initial, to: h.k.peer, from: h.k.id}
	b := head.appendTo(make([]byte, 0, tokenRequestSize))
	h.unsent = h.k.c.shared.sendOne(b[:tokenRequestSize], h.to, h.via)
}

// handlePacket handles a received packet, or discards it if it is not authentic. When the first
// token arrives, handlePacket calls start.
func (h *handshake) handlePacket(b []byte, start func() error) error {
	head, ok := parseLong(b)
	if !ok {
		return nil
	}
	switch head.kind {
	case retry:
		if !h.client || h.gotPacket || len(head.token) != tokenSize {
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
	case notice:
		if h.client && !h.gotPacket && head.number < len(b) {
			return noTLSAlert{frame.ParseBye(b[head.number:])}
		}
		return nil
	}
	at := tls.QUICEncryptionLevelInitial
	if head.kind == handshaking {
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
	h.gotPacket = true
	h.receivedBytes += len(b)
	switch {
	case text[0] == closeMessage:
		return remoteAlert(text[1])
	case text[0] != cryptoMessage || len(text) < cryptoHead:
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
	l.ackPending = true
	if offset > l.received || offset+len(data) <= l.received {
		return nil // TLS requires bytes in order; the peer retransmits the missing ones
	}
	data = data[l.received-offset:]
	if h.budget -= len(data); h.budget < 0 {
		return secure.ErrTooMuch
	}
	l.received += len(data)
	if err := h.q.HandleData(at, data); err != nil {
		return err
	}
	return h.handleTLSEvents()
}

// handleTLSEvents handles TLS events: new keys, output, the peer's transport parameters, and
// completion of the handshake.
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
				return fmt.Errorf("unexpected TLS data after the handshake")
			}
			h.levels[e.Level].out = append(h.levels[e.Level].out, e.Data...)
		case tls.QUICTransportParameters:
			want := binary.BigEndian.AppendUint64(nil, h.k.peer)
			if h.client {
				want = binary.BigEndian.AppendUint64(want, h.k.id)
			}
			if string(e.Data) != string(want) {
				return errors.New("connection IDs do not match those of the handshake")
			}
		case tls.QUICHandshakeDone:
			h.finishTLS()
		}
	}
}

// keyUpdates returns the Phase that links the key updates of the two directions, or nil if the keys
// of the given level are never updated.
func (h *handshake) keyUpdates(at tls.QUICEncryptionLevel) *protect.Phase {
	if at != tls.QUICEncryptionLevelApplication {
		return nil
	}
	return h.phase
}

// finishTLS records the peer's identity as verified by TLS.
func (h *handshake) finishTLS() {
	state := h.q.ConnectionState()
	h.k.proof = secure.Prove(h.cfg, &state, *h.verified)
	h.done = true
}

// flush sends acknowledgments and any TLS output not sent yet. It makes the connection usable once
// the keys are available.
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
		if l.ackPending {
			h.sendCrypto(i, len(l.out))
		}
	}
}

// sendCrypto sends one packet that contains an acknowledgment and output of the level at, starting
// at offset from. It returns the number of output bytes sent.
func (h *handshake) sendCrypto(at, from int) (n int) {
	l := &h.levels[at]
	text := binary.BigEndian.AppendUint32([]byte{cryptoMessage}, uint32(l.received))
	text = binary.BigEndian.AppendUint32(text, uint32(from))
	n = min(maxCrypto, len(l.out)-from)
	l.ackPending = false
	h.sentBytes += n
	h.send(at, append(text, l.out[from:from+n]...))
	return n
}

// maySendMore reports whether another packet of output may be sent. Until the client has
// acknowledged a packet, the server sends at most three times as many bytes as it has received,
// plus one packet (RFC 9000, Section 8.1). The limit applies even though the client has sent a
// token, because an attacker on the path may have copied the token.
func (h *handshake) maySendMore() bool { return h.client || h.acked || h.sentBytes < 3*h.receivedBytes }

// sendProbe retransmits the first unacknowledged packet (RFC 9002, Section 6.2.4). The peer's
// acknowledgment then shows which other packets were lost.
func (h *handshake) sendProbe() {
	for i := range h.levels {
		if l := &h.levels[i]; l.sealer != nil && l.acked < len(l.out) {
			h.sendCrypto(i, l.acked)
			l.sent = max(l.sent, min(l.acked+maxCrypto, len(l.out)))
			h.probed = true
			return
		}
	}
}

// resendLost makes flush retransmit all unacknowledged output, if the acknowledgment just received
// answers a probe. The peer accepts bytes only in order, and has therefore discarded the output
// after the lost packet.
func (h *handshake) resendLost() {
	if !h.probed {
		return
	}
	h.probed = false
	for i := range h.levels {
		h.levels[i].sent = h.levels[i].acked
	}
}

// send encrypts the message text with the keys of the level at and sends it.
func (h *handshake) send(at int, text []byte) {
	head := longHeader{kind: initial, to: h.k.peer, from: h.k.id, token: h.token}
	if at != int(tls.QUICEncryptionLevelInitial) {
		head.kind, head.token = handshaking, nil
	}
	b := head.appendTo(make([]byte, 0, arq.BaseSize))
	n := len(b)
	b = append(append(b, make([]byte, protect.NumberSize)...), text...)
	b = append(b, make([]byte, protect.TagSize)...)
	if h.levels[at].sealer.Seal(b, n) == nil {
		h.unsent = h.k.c.shared.sendOne(b, h.to, h.via)
	}
}

// end sends the alert for err to the peer. On the listening side, end then blocks for alertTime or
// until ctx is done, and answers each packet from the peer with the alert, because the alert may be
// lost.
func (h *handshake) end(ctx context.Context, err error) {
	var remote remoteAlert
	var alert tls.AlertError
	switch {
	case errors.As(err, &remote):
		if !h.client {
			h.reportFailure(err)
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
	text := []byte{closeMessage, byte(alert)}
	h.send(at, text)
	if h.client {
		return
	}
	h.reportFailure(err)
	timer := time.NewTimer(alertTime)
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

// recoverInCallbacks returns a copy of cfg in which a panic in a user function aborts only the
// handshake. The functions run on a goroutine started by package tls, where this package has no
// other way to recover. The net.Conn passed to them provides only addresses.
func recoverInCallbacks(cfg *tls.Config, log *slog.Logger, peer netip.AddrPort) *tls.Config {
	cfg = cfg.Clone()
	caught := func(err *error) {
		if p := recover(); p != nil {
			log.Error("a callback of the tls.Config panicked", "peer", peer.String(), "panic", p, "stack", string(debug.Stack()))
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

// A shownConn is the net.Conn passed to the callbacks of a tls.Config. It provides only addresses.
type shownConn struct{ remote net.Addr }

func (s shownConn) RemoteAddr() net.Addr           { return s.remote }
func (shownConn) LocalAddr() net.Addr              { return &net.UDPAddr{} }
func (shownConn) Read([]byte) (int, error)         { return 0, net.ErrClosed }
func (shownConn) Write([]byte) (int, error)        { return 0, net.ErrClosed }
func (shownConn) Close() error                     { return nil }
func (shownConn) SetDeadline(time.Time) error      { return nil }
func (shownConn) SetReadDeadline(time.Time) error  { return nil }
func (shownConn) SetWriteDeadline(time.Time) error { return nil }
