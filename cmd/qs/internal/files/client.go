package files

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A client is the origin's connection to a target. A dedicated goroutine drives the node, so that other goroutines can
// block.
type client struct {
	node    *qs.Node
	to      qs.Peer
	addr    na.Addr
	piece   hg.ID
	timeout time.Duration
	served  chan struct{} // closed when the goroutine that drives the node returns
}

// newClient returns a client of the target at addr, without connecting to the target. The timeout applies to each
// answer. The client takes ownership of node, even if newClient returns an error.
func newClient(node *qs.Node, addr na.Addr, timeout time.Duration) (c *client, err error) {
	c = &client{node: node, addr: addr, timeout: timeout, served: make(chan struct{})}
	if c.piece, err = node.HG().Class().RegisterRPC(hg.RPC{Name: rpcPiece, Codec: codec.Msgpack}); err == nil {
		c.to, err = node.Peer(context.Background(), addr.String())
	}
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	go func() {
		defer close(c.served)
		_ = node.Serve(context.Background())
	}()
	return c, nil
}

// close cancels all pending operations and waits for them to complete. It does not wait for the target.
func (c *client) close() {
	_ = c.node.Close()
	<-c.served
}

// newLateError returns the error for a call to method that was canceled because its timeout expired.
func (c *client) newLateError(method string) error {
	return na.WithText(na.ErrTimeout, fmt.Sprintf("%s did not answer %s within %v", c.addr, method, c.timeout))
}

// callMethod calls m. It does not send the timeout to the target, because the target's timeout error would then replace
// the more precise error of newLateError.
func callMethod[In, Out any](ctx context.Context, c *client, m *qs.Method[In, Out], in In) (Out, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(c.timeout, func() { cancel(c.newLateError(m.Name())) }).Stop()
	out, err := m.Call(ctx, c.to, in)
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	}
	return out, Explain(c.addr, err)
}

// A pending is an rpcPiece request that has been forwarded and may not have been answered.
type pending struct {
	c    *client
	h    *hg.Handle
	done chan error
}

// forward sends a request for a piece. It does not wait for the answer.
func (c *client) forward(in *pieceRequest) (*pending, error) {
	h, err := c.node.HG().Create(c.addr, c.piece)
	if err != nil {
		return nil, err
	}
	p := &pending{c, h, make(chan error, 1)}
	if err := h.Forward(in, func(_ *hg.Handle, err error) { p.done <- err }); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return p, nil
}

// wait waits for the answer and returns it. It cancels the request if ctx is done or the timeout expires.
func (p *pending) wait(ctx context.Context) (out pieceReply, err error) {
	defer func() { _ = p.h.Close() }()
	ctx, stop := context.WithTimeoutCause(ctx, p.c.timeout, p.c.newLateError(rpcPiece))
	defer stop()
	select {
	case err = <-p.done:
	case <-ctx.Done():
		p.h.Cancel()
		if err = <-p.done; err != nil {
			return out, context.Cause(ctx)
		}
	}
	if err != nil {
		return out, Explain(p.c.addr, err)
	}
	return out, p.h.Output(&out)
}

// Explain returns an error for users that describes the failed call err. The error contains no terms of the library.
func Explain(peer na.Addr, err error) error {
	remote, ok := hg.RemoteOf(err)
	switch {
	case errors.Is(err, hg.ErrUnreachable):
		return newUnreachableError(peer, err)
	case ok && remote.Refused && remote.Code == hg.ErrNoMethod:
		return show.Reword(err, fmt.Sprintf("%s does not serve this method; start it with qs serve of the same version, for files with --root DIR", peer))
	case ok:
		return hg.Errorf(remote.Code, "%s: %w", peer, remote) // both programs are qs, so their codes have the same meaning
	}
	if call, ok := errors.AsType[*hg.Error](err); ok {
		return show.Reword(err, SayUnanswered(peer, call))
	}
	return err
}

// SayUnanswered returns a text that describes why peer did not answer call. The text contains no terms of the library.
func SayUnanswered(peer na.Addr, call *hg.Error) string {
	if errors.Is(call, na.ErrPeerLost) {
		return fmt.Sprintf("%s was lost: %v", peer, call.Err)
	}
	return fmt.Sprintf("%s: %v", peer, call.Err)
}

// A certificateError is returned when a connection fails because the certificate of this program or of the peer is
// missing or not acceptable.
type certificateError struct{ error }

func (e certificateError) Unwrap() error { return e.error }

// NeedsCertificate reports whether err means that a peer could not be reached because a certificate was missing or not
// acceptable. In that case, the same command would fail again.
func NeedsCertificate(err error) bool { return errors.As(err, new(certificateError)) }

const bothTLS = "use TLS at both ends or at neither: set --cert, --key and --ca as the program there does"

// loadTLSHint matches the advice for callers of qs.LoadTLS in the texts of TLS errors.
var loadTLSHint = regexp.MustCompile(` \(LoadTLS: [^)]*\)`)

// explainTLSError returns a description of the TLS error with the text what, and a remedy that names flags of the
// command. If the error is not known, the description is what itself.
func explainTLSError(what string) (said, todo string, known bool) {
	for _, c := range [][2]string{
		{"is for another host", "give --server-name with a name that the certificate carries, or an address with such a host"},
		{"is signed by an unknown authority", "give --ca with the authority that signed the peer's certificate"},
		{"the peer requires a certificate", "give --cert and --key: a certificate of an authority that the peer trusts"},
		{"does not trust the authority of the local certificate", "give --cert and --key of an authority that the peer trusts"},
		{"has expired or is not yet valid", "renew the certificate"},
		{"as expired or not yet valid", "renew the certificate"},
		{"TLS is required here", bothTLS},
		{"the peer does not use TLS", bothTLS},
	} {
		if before, rest, ok := strings.Cut(what, c[0]); ok {
			if _, detail, ok := strings.Cut(loadTLSHint.ReplaceAllString(rest, ""), " ("); ok {
				c[0] += " (" + detail
			}
			return before + c[0], c[1], true
		}
	}
	return what, bothTLS, false
}

// versionText returns a parenthesized text about the peer's version if what contains one. For other protocols, whose
// details mean nothing to users, it returns "".
func versionText(what string) string {
	if strings.Contains(what, "speaks protocol version") {
		return " (" + what + ")"
	}
	return ""
}

// newUnreachableError returns the error for a session with peer that could not be established. Details after
// ErrUnreachable come from the peer, or from another program at the same address.
func newUnreachableError(peer na.Addr, err error) error {
	if e, ok := errors.AsType[*hg.Error](err); ok {
		err = e.Err
	}
	what, said := strings.CutPrefix(err.Error(), hg.ErrUnreachable.Error()+": ")
	todo, needsCertificate := "", false
	switch {
	case strings.Contains(what, "TLS"):
		what, todo, needsCertificate = explainTLSError(what)
	case strings.HasPrefix(what, "session begins with"), strings.Contains(what, "speaks protocol version"), errors.Is(err, na.ErrProtocol):
		what = "the program there does not use Quicksilver, or uses another version" + versionText(what)
		todo = "correct the address, or use the same version at both ends"
	case strings.HasPrefix(what, "no connection within"):
		todo = "check that a Quicksilver program runs there and is not stopped, and that no firewall drops the packets"
	case !said:
		todo = "start the program there, or correct the address, transport and port included"
	}
	err = hg.Errorf(hg.ErrUnreachable, "%s cannot be reached: %s", peer, what)
	if needsCertificate {
		err = certificateError{err}
	}
	if todo != "" {
		err = show.Advise(err, "to do:  "+todo)
	}
	return err
}
