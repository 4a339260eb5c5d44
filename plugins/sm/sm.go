package sm

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const scheme = "sm"

func init() { carrier.Register(New(Options{})) }

// Options configures the plugin. The zero value is ready to use.
type Options struct {
	// Dir is the directory that contains the sockets of listening processes. If empty, it is
	// $XDG_RUNTIME_DIR/quicksilver, or /tmp/quicksilver-UID if that variable is not set. The
	// directory is created if necessary. It must belong to the user, and no other user may have
	// access to it. Processes with different directories cannot connect to each other.
	Dir string
	// AnyUser allows accepting connections from, and dialing, processes of other users. It requires
	// Dir, and other users may have access to that directory. A malicious peer can then block this
	// process by misusing the file descriptors that the two processes share.
	AnyUser bool
	// Unassisted disables the background poller, so that peers are served only during Progress.
	Unassisted bool
	// TakeTimeout is how long a peer may go without reading any of the messages sent to it before
	// its session ends. It applies to peers that still send, to which PeerTimeout does not apply.
	// Zero means 10 s, or PeerTimeout if that is longer.
	TakeTimeout time.Duration
}

// New returns a plugin with the given options, for use in na.Config.Plugins. Invalid options are
// reported by na.Open.
func New(opts Options) carrier.Plugin { return plugin{opts} }

type plugin struct{ opts Options }

// Scheme implements carrier.Plugin.
func (plugin) Scheme() string { return scheme }

// A domain holds the plugin's state for one class.
type domain struct {
	class    carrier.Class
	opts     Options
	names    addressNames
	start    time.Time
	acceptor acceptor

	beside bool // whether the class has another transport that a session can use instead
}

const defaultTakeTimeout = 10 * time.Second

// Open implements carrier.Plugin.
func (p plugin) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	_, n, err := p.open(class, rest)
	if err != nil {
		return nil, err
	}
	patience := p.opts.TakeTimeout
	if patience == 0 {
		patience = max(defaultTakeTimeout, class.Config().PeerTimeout)
	}
	n.Unassisted, n.WriteTimeout = p.opts.Unassisted, patience
	return n, nil
}

// OpenBeside implements carrier.Companion. A class that listens gets a unique name, which is
// revealed only to the peers to which the class offers sm.
func (p plugin) OpenBeside(class carrier.Class, listens bool) (*carrier.Network, error) {
	if err := p.opts.validate(); err != nil {
		return nil, err
	}
	name := ""
	if listens {
		name = "beside-*"
	}
	d, n, err := p.open(class, name)
	d.beside = true
	if err == nil {
		n.Place, err = d.opts.reachID()
	}
	if err != nil {
		_ = d.close()
		return nil, err
	}
	return n, nil
}

// validate returns an error if the options are inconsistent.
func (o *Options) validate() error {
	if o.AnyUser && o.Dir == "" {
		return codes.WithText(codes.ErrInvalid, "sm: options: AnyUser needs Dir, a directory that the users share")
	}
	return nil
}

// open opens the network of a class and listens on the given name, unless it is empty.
func (p plugin) open(class carrier.Class, listen string) (*domain, *carrier.Network, error) {
	d := &domain{class: class, opts: p.opts, start: time.Now()}
	n := &carrier.Network{Exact: true, FlushEvery: 16, Names: &d.names, NewCarrier: d.newCarrier, Close: d.close}
	err := d.open(listen)
	if err == nil && listen != "" {
		n.Listen = d.names.self
	}
	if d.names.self == "" {
		d.names.self = class.PrivateName(scheme)
	}
	return d, n, err
}

// now returns the time since the class was opened. It is monotonic and never zero.
func (d *domain) now() time.Duration { return time.Since(d.start) + 1 }
