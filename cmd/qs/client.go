package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A client is an origin with one target.
type client struct {
	node *qs.Node
	hctx *hg.Context // of the node
	peer na.Addr
}

func dial(n *network, addr string) (*client, error) {
	addr, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	cfg, err := n.config(addr)
	if err != nil {
		return nil, err
	}
	node, err := qs.Open(n.to(addr), qs.Config{HG: cfg})
	if err != nil {
		return nil, err
	}
	peer, err := node.HG().LookupWait(context.Background(), addr)
	if err == nil {
		_, err = node.HG().Class().Register(inspect.GaugesRPC, nil)
	}
	if errors.Is(err, na.ErrInvalid) {
		err = usageError{err.Error()}
	}
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return &client{node, node.HG(), peer}, nil
}

// close ends everything that is under way; no peer can delay it.
func (c *client) close() { _ = c.node.Close() }

// askTimeout is how long commands without a flag for it wait for what they ask.
const askTimeout = 10 * time.Second

// ask makes a call that changes nothing, and waits for its answer for a time. The error says that the program did not do what was asked.
func (c *client) ask(ctx context.Context, within time.Duration, what, rpc string, in []byte, meta hg.Metadata) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	b, err := c.callRaw(ctx, rpc, in, meta)
	if _, answered := hg.RemoteOf(err); err == nil || answered {
		return b, err
	}
	call, ok := errors.AsType[*hg.Error](err)
	switch {
	case errors.Is(err, hg.ErrUnreachable):
		return nil, err
	case hg.CodeOf(err) == hg.ErrTimeout, errors.Is(err, context.DeadlineExceeded):
		return nil, unansweredError{fmt.Sprintf("%s did not %s within %v", c.peer, what, within), err}
	case hg.CodeOf(err) == hg.ErrCanceled, errors.Is(err, context.Canceled):
		return nil, unansweredError{fmt.Sprintf("%s did not %s before this was interrupted", c.peer, what), err}
	case ok:
		return nil, unansweredError{fmt.Sprintf("%s did not %s: %v", c.peer, what, call.Err), err}
	}
	return nil, err
}

// adviseAsk says what to do about the error of ask; flag is that which gives more time, or "".
func (c *client) adviseAsk(err error, flag string) error {
	if !errors.As(err, new(unansweredError)) {
		return err
	}
	if flag != "" {
		flag = ", or give it more time with " + flag
	}
	return show.Advise(err, fmt.Sprintf("to do:  repeat it%s; qs ping %s tells whether it answers", flag, c.peer))
}

// hostPort is an address without its scheme.
var hostPort = regexp.MustCompile(`^([^/:\s]+|\[[0-9a-fA-F:.%]+\]):[0-9]+(/.*)?$`)

// parseScheme returns an argument that is an address to listen on. HOST:PORT is that of tcp.
func parseScheme(text string) (string, error) {
	if hostPort.MatchString(text) {
		return "tcp://" + text, nil
	}
	scheme, _, ok := strings.Cut(text, "://")
	if ok && scheme != "" && !slices.Contains(na.Schemes(), scheme) {
		return "", usageError{fmt.Sprintf("%s: there is no transport %q: have %s", text, scheme, strings.Join(na.Schemes(), ", "))}
	}
	return text, nil
}

// parseAddr returns an argument that is the address of a program.
func parseAddr(text string) (string, error) {
	text, err := parseScheme(text)
	if err != nil {
		return "", err
	}
	if _, err := na.ParseAddr(text); err != nil {
		return "", usageError{err.Error()}
	}
	if scheme, rest, _ := strings.Cut(text, "://"); scheme != "sm" && strings.Contains(rest, "/") {
		return "", usageError{text + ": the address ends at the port; METHOD is the next argument"}
	}
	return text, nil
}
