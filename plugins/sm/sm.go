package sm

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const scheme = "sm"

func init() { carrier.Register(New(Options{})) }

// Options configures the plugin. The zero value works.
type Options struct {
	// Dir is the directory with the sockets of processes that listen. Empty means
	// $XDG_RUNTIME_DIR/quicksilver, or /tmp/quicksilver-UID if that variable is not set. It is made
	// if need be; it must belong to the user, and no other user may have access. Processes with
	// different directories cannot connect.
	Dir string
	// AnyUser accepts connections of other users' processes, and allows dialing them. Dir is
	// required then, and other users may have access to it. Such a peer can stop this process on
	// purpose, by misusing the descriptors that the two share.
	AnyUser bool
	// Unassisted turns off the background poller: peers are served only inside Progress.
	Unassisted bool
	// TakeTimeout limits how long a peer may read none of the messages for it before its session
	// ends. It is for peers that still send, to which PeerTimeout does not apply. Zero means 10 s,
	// or PeerTimeout if that is longer.
	TakeTimeout time.Duration
}

// New returns a plugin with options of its own, for na.Config.Plugins. na.Open reports invalid
// options.
func New(opts Options) carrier.Plugin { return plugin{opts} }

type plugin struct{ opts Options }

// Scheme implements carrier.Plugin.
func (plugin) Scheme() string { return scheme }

// A domain is the state of the plugin in one class.
type domain struct {
	class    carrier.Class
	opts     Options
	names    addressNames
	start    time.Time
	acceptor acceptor

	beside bool // the class has another transport, which a session can use instead
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

// OpenBeside implements carrier.Companion. A class that listens gets a unique name here, which only
// the peers learn that it offers sm to.
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

// validate returns an error if the options contradict each other.
func (o *Options) validate() error {
	if o.AnyUser && o.Dir == "" {
		return codes.WithText(codes.ErrInvalid, "sm: options: AnyUser needs Dir, a directory that the users share")
	}
	return nil
}

// open opens the network of a class, which listens at a name unless that is empty.
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
