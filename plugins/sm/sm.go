package sm

import (
	"crypto/rand"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

const scheme = "sm"

func init() { na.RegisterPlugin(New(Options{})) }

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
func New(opts Options) na.Plugin { return plugin{opts} }

type plugin struct{ opts Options }

// Scheme implements na.Plugin.
func (plugin) Scheme() string { return scheme }

// A domain is the plugin opened by a class.
type domain struct {
	opts  Options
	names names
	start time.Time
	door  door

	beside bool // another transport, which peers may be reached by
}

const defaultTakeTimeout = 10 * time.Second

// Open implements na.Plugin.
func (p plugin) Open(cls *na.Class, rest string) (na.Domain, error) {
	d, t, err := p.open(rest)
	if err != nil {
		return nil, err
	}
	patience := p.opts.TakeTimeout
	if patience == 0 {
		patience = max(defaultTakeTimeout, cls.Config().PeerTimeout)
	}
	eng := engine.New(cls, engine.Options{
		Transports: []engine.Transport{t}, Now: d.now, Rand: func(b []byte) { _, _ = rand.Read(b) },
		Unassisted: p.opts.Unassisted, TakeTimeout: patience, Close: d.close,
	})
	d.names.self = eng.Addr().Name()
	return eng, nil
}

// Join implements na.Companion. A class that listens does so here at a name that only those hear of whom it makes an offer. Where this process
// cannot have shared memory the class stays on its first transport, which reaches everybody: that is logged, and is no error.
func (p plugin) Join(cls *na.Class, beside na.Domain) error {
	eng, ok := beside.(*engine.Engine)
	if !ok {
		return na.WithText(na.ErrUnsupported, "sm:// cannot be beside a transport that is not Quicksilver's own")
	}
	if err := p.opts.validate(); err != nil {
		return err
	}
	name := ""
	if eng.Listens() {
		name = "beside-*"
	}
	d, t, err := p.open(name)
	d.beside = true
	if err == nil {
		t.Place, err = d.opts.reach()
	}
	if err != nil {
		_ = d.close()
		cfg := cls.Config()
		cfg.Log().Warn("sm:// is left out: peers on this machine are reached by the first transport, too", "addr", eng.Addr().Name(), "err", err)
		return nil
	}
	if err := eng.Join(t, func() { _ = d.close() }); err != nil {
		_ = d.close()
		return err
	}
	return nil
}

// validate reports what is wrong with the options.
func (o *Options) validate() error {
	if o.AnyUser && o.Dir == "" {
		return na.WithText(na.ErrInvalid, "sm: options: AnyUser is true and Dir is empty, want a directory that the users share")
	}
	return nil
}

// open opens the transport of a class.
func (p plugin) open(rest string) (*domain, engine.Transport, error) {
	d := &domain{opts: p.opts, start: time.Now()}
	t := engine.Transport{Scheme: scheme, Exact: true, Batch: 16, Names: &d.names, Carrier: d.newCarrier}
	err := d.open(rest)
	if err == nil && rest != "" {
		t.Self, t.Listen = d.names.self, d.names.self
	}
	return d, t, err
}

// now is the clock: monotonic, never zero.
func (d *domain) now() time.Duration { return time.Since(d.start) + 1 }
