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
}

const defaultTakeTimeout = 10 * time.Second

// Open implements na.Plugin.
func (p plugin) Open(cls *na.Class, rest string) (na.Domain, error) {
	d := &domain{opts: p.opts, start: time.Now()}
	t := engine.Transport{Scheme: scheme, Exact: true, Batch: 16, Names: &d.names, Carrier: d.newCarrier}
	if err := d.open(rest); err != nil {
		return nil, err
	}
	if rest != "" {
		t.Self, t.Listen = d.names.self, d.names.self
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

// now is the clock: monotonic, never zero.
func (d *domain) now() time.Duration { return time.Since(d.start) + 1 }
