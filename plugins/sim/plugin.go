package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const scheme = "sim"

func init() { carrier.Register(NewWorld(Config{Paced: true}).Plugin()) }

// plugin opens classes in a world, on one node of it or on the node that the caller runs on.
type plugin struct {
	w    *World
	node *Node
}

var (
	_ carrier.Plugin    = (*plugin)(nil)
	_ simhook.Clock     = (*plugin)(nil)
	_ simhook.Scheduler = (*instance)(nil)
	_ simhook.Faults    = (*instance)(nil)
)

// Plugin returns the plugin of the world, for na.Config.Plugins. A class that a coroutine opens
// lives on the coroutine's node; any other lives on the node that is called as the name it listens
// under, or on one of its own.
func (w *World) Plugin() carrier.Plugin { return &plugin{w: w} }

// Now implements simhook.Clock.
func (p *plugin) Now() time.Duration { return p.w.Now() }

// Rand implements simhook.Clock.
func (p *plugin) Rand(b []byte) { p.w.Rand(b) }

// Driven implements simhook.Clock.
func (p *plugin) Driven() bool { return true }

// Scheme implements carrier.Plugin.
func (p *plugin) Scheme() string { return scheme }

// Open implements carrier.Plugin.
func (p *plugin) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	w := p.w
	w.takeTurn()
	defer w.releaseTurn()
	in := &instance{w: w}
	var self string // left to package na for a class that only originates
	if rest == "" {
		w.unnamed++
		rest = fmt.Sprintf("@%d", w.unnamed)
	} else {
		if err := checkName(rest); err != nil {
			return nil, err
		}
		self = scheme + "://" + rest
		if w.listeners[self] != nil {
			return nil, codes.WithText(codes.ErrAddrInUse, "a class already listens on "+self)
		}
		w.listeners[self] = in
		delete(w.crashedNames, self)
	}
	switch {
	case p.node != nil:
		in.node = p.node
	case w.current != nil:
		in.node = w.current.node
	default:
		in.node = w.nodeNamed(rest)
	}
	in.node.isSilent = false
	if in.name = self; self == "" {
		in.name = class.PrivateName(scheme)
	}
	in.class = class
	in.node.instances = append(in.node.instances, in)
	w.addTrace("open", in.name, uint64(len(in.node.instances)), 0)
	return &carrier.Network{Listen: self, Names: in, NewCarrier: in.carrier, Host: in.node.name, Close: in.close}, nil
}

// checkName returns why a class cannot listen on an address with rest behind "sim://".
func checkName(rest string) error {
	if rest == "" || len(rest) > 255 {
		return codes.WithText(codes.ErrInvalid, fmt.Sprintf("sim: name has %d bytes, want 1 to 255", len(rest)))
	}
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.:", c) >= 0) {
			return codes.WithText(codes.ErrInvalid, fmt.Sprintf("sim: invalid name %q, want letters, digits and -_.:", rest))
		}
	}
	return nil
}

// An instance is a class of the world.
type instance struct {
	w     *World
	node  *Node
	name  string
	class carrier.Class
	ports []*port // by context id
	dead  bool    // its node has crashed
}

// carrier makes the carrier of a context.
func (in *instance) carrier(e carrier.Core) (carrier.Carrier, error) {
	w := in.w
	w.takeTurn()
	defer w.releaseTurn()
	p := &port{w: w, instance: in, core: e, driver: e.(simhook.Core)}
	p.timer = event{actor: p, isTimer: true}
	p.flushEvent = event{actor: p, isTimer: true}
	if in.dead {
		p.isReleased.Store(true)
		p.hasCrashed.Store(true)
	}
	in.ports = append(in.ports, p)
	return p, nil
}

// openPort returns the port of a context if it accepts connections.
func (in *instance) openPort(target int) *port {
	if in == nil || in.dead || target >= len(in.ports) {
		return nil
	}
	if p := in.ports[target]; !p.isShut.Load() && !p.isReleased.Load() {
		return p
	}
	return nil
}

// close releases the name.
func (in *instance) close() error {
	in.w.takeTurn()
	defer in.w.releaseTurn()
	if in.w.listeners[in.name] == in {
		delete(in.w.listeners, in.name)
	}
	in.node.instances = removeElement(in.node.instances, in)
	return nil
}
