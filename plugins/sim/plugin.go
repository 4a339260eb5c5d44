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

func init() { carrier.Register(&plugin{w: NewWorld(Config{Paced: true}), isDefault: true}) }

// plugin opens classes in a world, either on a given node or on the node of the calling coroutine.
type plugin struct {
	w         *World
	node      *Node
	isDefault bool // the world is the one behind "sim://", which has no coroutines
}

// errOtherWorld is returned for a class that a coroutine of a World opens in the default world. The
// class would not reach those of the World, and its time would not pass in Run.
var errOtherWorld = codes.WithText(codes.ErrInvalid, "a coroutine of a sim.World needs the plugin of that World: "+
	"add World.Plugin() to na.Config.Plugins (with package qs: Config.HG.NA.Plugins); see docs/guide/testing.md")

var (
	_ carrier.Plugin    = (*plugin)(nil)
	_ simhook.Clock     = (*plugin)(nil)
	_ simhook.Scheduler = (*instance)(nil)
	_ simhook.Faults    = (*instance)(nil)
)

// Plugin returns the world's plugin, for use in na.Config.Plugins. A class opened by a coroutine
// belongs to the coroutine's node. Any other class belongs to the node named after the name it
// listens on, or to a node of its own.
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
	if p.isDefault && isCoroutine() {
		return nil, errOtherWorld
	}
	w.takeTurn()
	defer w.releaseTurn()
	in := &instance{w: w}
	var self string // left empty, for package na to choose, if the class does not listen
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

// checkName returns an error if a class cannot listen on "sim://" followed by rest.
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

// An instance is a class opened in the world.
type instance struct {
	w     *World
	node  *Node
	name  string
	class carrier.Class
	ports []*port // indexed by context ID
	dead  bool    // whether its node has crashed
}

// carrier creates the carrier of a context.
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

// openPort returns the port of the context target if it accepts connections, and nil otherwise.
func (in *instance) openPort(target int) *port {
	if in == nil || in.dead || target >= len(in.ports) {
		return nil
	}
	if p := in.ports[target]; !p.isShut.Load() && !p.isReleased.Load() {
		return p
	}
	return nil
}

// close releases the class's name.
func (in *instance) close() error {
	in.w.takeTurn()
	defer in.w.releaseTurn()
	if in.w.listeners[in.name] == in {
		delete(in.w.listeners, in.name)
	}
	in.node.instances = removeElement(in.node.instances, in)
	return nil
}
