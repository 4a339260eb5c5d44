package sm

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const scheme = "sm"

func init() { carrier.Register(New(Options{})) }

// Options holds what the plugin can be told. The zero value works.
type Options struct {
	// Dir is the directory with the names of processes that listen. Empty means $XDG_RUNTIME_DIR/quicksilver, or
	// /tmp/quicksilver-UID where that is not set. It is made if need be, and must belong to the user and be closed to everybody
	// else. Processes with different directories do not find one another.
	Dir string
	// AnyUser lets processes of other users in, and dials theirs. Then Dir must be given, and may be open to others. A peer can stop
	// this process on purpose by what it does to the descriptors that the two share.
	AnyUser bool
	// Unassisted leaves a context alone that nobody drives: peers are served only inside Progress.
	Unassisted bool
	// TakeTimeout is how long a peer may take nothing of what there is for it before the session with it ends. It is about peers that
	// still send, to which PeerTimeout does not apply. Zero means 10 s, or PeerTimeout if that is longer.
	TakeTimeout time.Duration
}

// New returns a plugin with options of its own, for na.Config.Plugins. Bad options are reported by na.Open.
func New(opts Options) carrier.Plugin { return plugin{opts} }

type plugin struct{ opts Options }

// Scheme implements carrier.Plugin.
func (plugin) Scheme() string { return scheme }

// A domain is the plugin opened by a class.
type domain struct {
	class carrier.Class
	opts  Options
	names addressNames
	start time.Time
	door  acceptor

	beside bool // another transport, which peers may be reached by
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

// OpenBeside implements carrier.Companion. A class that listens does so here at a name that only those peers learn to whom it makes an offer.
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

// validate reports what is wrong with the options.
func (o *Options) validate() error {
	if o.AnyUser && o.Dir == "" {
		return codes.WithText(codes.ErrInvalid, "sm: options: AnyUser is true and Dir is empty, want a directory that the users share")
	}
	return nil
}

// open opens the network of a class.
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

// now is the clock: monotonic, never zero.
func (d *domain) now() time.Duration { return time.Since(d.start) + 1 }
