package main

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// A client is a node for calls to a single target.
type client struct {
	node    *qs.Node
	context *hg.Context // the node's context
	peer    na.Addr

	timeout      time.Duration // timeout of calls, for error messages
	missingTypes string        // reason why the program's types are not known, for error messages; "" if they are
}

func dial(n *network, addr string) (*client, error) {
	addr, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	cfg, err := n.newConfig(addr)
	if err != nil {
		return nil, err
	}
	node, err := qs.Open(n.clientAddr(addr), qs.Config{HG: cfg})
	if err != nil {
		return nil, err
	}
	peer, err := node.HG().LookupWait(context.Background(), addr)
	if err == nil {
		_, err = node.HG().Class().Register(inspect.GaugesRPC, nil)
	}
	if err != nil {
		return nil, errors.Join(explainLookup(addr, err), node.Close())
	}
	return &client{node: node, context: node.HG(), peer: peer}, nil
}

// explainLookup returns the error for a failed lookup of addr. The error states the reason for err in terms that users
// understand.
func explainLookup(addr string, err error) error {
	call, ok := errors.AsType[*hg.Error](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, na.ErrInvalid):
		return usageError{call.Err.Error()}
	}
	err = show.Reword(err, addr+": "+strings.TrimSuffix(call.Err.Error(), ": no such host"))
	return show.Advise(err, show.ToDo+"correct the host in the address, or check its name resolution")
}

// close closes the node and cancels all pending operations. It does not wait for peers.
func (c *client) close() { _ = c.node.Close() }

// readOnlyTimeout is the timeout of read-only calls by commands without a timeout flag.
const readOnlyTimeout = 10 * time.Second

// callReadOnly makes a call that does not change any state, and waits at most the duration within for the answer. Its
// errors describe the failed request.
func (c *client) callReadOnly(ctx context.Context, within time.Duration, what, rpc string, in []byte, meta hg.Metadata) ([]byte, error) {
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

// adviseReadOnly adds a remedy to an error returned by callReadOnly. If flag is not empty, it is the flag that sets a
// longer timeout.
func (c *client) adviseReadOnly(err error, flag string) error {
	if !errors.As(err, new(unansweredError)) {
		return err
	}
	if flag != "" {
		flag = ", or give it more time with " + flag
	}
	return show.Advise(err, fmt.Sprintf("%sretry it%s; qs ping %s shows whether the program responds", show.ToDo, flag, c.peer))
}

// hostPort matches an address without a scheme.
var hostPort = regexp.MustCompile(`^([^/:\s]+|\[[0-9a-fA-F:.%]+\]):[0-9]+(/.*)?$`)

// portOnly matches an address without a host, and hostOnly one without a port.
var (
	portOnly = regexp.MustCompile(`^:[0-9]+$`)
	hostOnly = regexp.MustCompile(`^(localhost|[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+|\[[0-9a-fA-F:.%]+\])$`)
)

// addressErrorText returns the text of err, which is about an address, without the prefixes that the library adds.
func addressErrorText(err error) string {
	text := err.Error()
	for _, words := range []string{"qs: open: ", "qs: open ", "na: address ", "na: open "} {
		text = strings.TrimPrefix(text, words)
	}
	return strings.TrimSuffix(text, ": "+na.ErrInvalid.Error())
}

// isAddress reports whether an argument is a program's address. Otherwise, the argument is a method name.
func isAddress(text string) bool {
	return strings.Contains(text, "://") || hostPort.MatchString(text)
}

// newAddressError returns an error if the arguments ADDRESS and METHOD appear to be swapped, and nil otherwise.
func newAddressError(args []string) error {
	if len(args) > 1 && !isAddress(args[0]) && isAddress(args[1]) {
		return usageError{fmt.Sprintf("%q is not an address; want ADDRESS before METHOD", args[0])}
	}
	return nil
}

// parseScheme parses a listen address. It adds the scheme tcp to an address of the form HOST:PORT.
func parseScheme(text string) (string, error) {
	if hostPort.MatchString(text) {
		return "tcp://" + text, nil
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	}
	switch {
	case strings.Contains(text, "://,") || strings.HasSuffix(text, "://") || scheme == "sm":
	case portOnly.MatchString(rest) && !ok:
		return "", usageError{fmt.Sprintf("%q has no host: write 127.0.0.1%[2]s, or 0.0.0.0%[2]s for all", text, rest)}
	case hostOnly.MatchString(rest) || net.ParseIP(rest) != nil:
		if strings.Contains(rest, ":") {
			rest = "[" + rest + "]"
		}
		if ok {
			rest = scheme + "://" + rest
		}
		return "", usageError{fmt.Sprintf("%q has no port: write %s:PORT", text, rest)}
	case !ok:
		return "", usageError{fmt.Sprintf("%q is not an address, want HOST:PORT or tcp://HOST:PORT", text)}
	}
	if ok && scheme != "" && !slices.Contains(na.Schemes(), scheme) {
		return "", usageError{fmt.Sprintf("%s: unknown transport %q, want one of %s", text, scheme, strings.Join(na.Schemes(), ", "))}
	}
	return text, nil
}

// parseAddr parses a program's address.
func parseAddr(text string) (string, error) {
	if portOnly.MatchString(text) {
		return "", usageError{fmt.Sprintf("%q has no host: write 127.0.0.1%s", text, text)}
	}
	text, err := parseScheme(text)
	if err != nil {
		return "", err
	}
	if _, err := na.ParseAddr(text); err != nil {
		return "", usageError{addressErrorText(err)}
	}
	if scheme, rest, _ := strings.Cut(text, "://"); scheme != "sm" && strings.Contains(rest, "/") {
		return "", usageError{text + ": the address ends at the port; METHOD is the next argument"}
	}
	return text, nil
}
