package inmem

import (
	"fmt"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const prefix = "mem://"

// A Network is a plugin whose classes can reach one another, but not the classes of another Network. Its methods are
// safe for concurrent use.
type Network struct {
	mu    sync.Mutex // guards nodes
	nodes map[string]*node
}

// New returns a network without classes.
func New() *Network { return &Network{nodes: map[string]*node{}} }

// Scheme implements carrier.Plugin.
func (n *Network) Scheme() string { return "mem" }

// Open implements carrier.Plugin. The name of a listening class is the one with which it was opened.
func (n *Network) Open(class carrier.Class, listen string) (*carrier.Network, error) {
	own := &node{net: n, class: class, ports: map[carrier.Core]*port{}}
	if listen != "" {
		own.name = prefix + listen
		if err := n.Check(own.name); err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.nodes[own.name] != nil {
			return nil, codes.WithText(codes.ErrAddrInUse, own.name+" is in use in this network")
		}
		n.nodes[own.name] = own
	}
	return &carrier.Network{
		Listen: own.name, Names: n, NewCarrier: own.newPort, Close: own.close,
		Exact: true, // a piece whose memory is no longer available is not sent at all
	}, nil
}

// Check implements carrier.Names.
func (n *Network) Check(name string) error {
	rest, ok := strings.CutPrefix(name, prefix)
	switch {
	case strings.HasPrefix(rest, "@"): // private name of a class that does not listen
		return codes.WithText(codes.ErrUnreachable, name+" does not listen: only answers reach it")
	case !ok || rest == "":
		return codes.WithText(codes.ErrInvalid, fmt.Sprintf("%q is not %sNAME", name, prefix))
	}
	return nil
}

// Resolve implements carrier.Names. The text of an address is already the name.
func (n *Network) Resolve(text string, done func(name string, err error)) (cancel func()) {
	if err := n.Check(text); err != nil {
		done("", codes.WithText(codes.ErrInvalid, err.Error()))
	} else {
		done(text, nil)
	}
	return nil
}

// Kill disconnects the class that listens at name, as if its process had been killed. Its peers' sessions end, and it
// can no longer be reached. The class itself no longer sends or receives anything.
func (n *Network) Kill(name string) {
	n.mu.Lock()
	victim := n.nodes[name]
	delete(n.nodes, name)
	n.mu.Unlock()
	if victim == nil {
		return
	}
	for _, p := range victim.all() {
		p.core.Lock()
		p.dead.Store(true)
		for e := range p.ends {
			e.send(event{kind: closed})
		}
		p.core.Unlock()
	}
}

// find returns the port of a context, or an error that explains why there is none.
func (n *Network) find(name string, target int) (*port, error) {
	n.mu.Lock()
	to := n.nodes[name]
	n.mu.Unlock()
	if to == nil {
		return nil, codes.WithText(codes.ErrUnreachable, "nobody listens at "+name)
	}
	if core := to.class.Context(target); core != nil {
		to.mu.Lock()
		defer to.mu.Unlock()
		if p := to.ports[core]; p != nil {
			return p, nil
		}
	}
	return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("no such context: %d at %s", target, name))
}

// A node is the network as opened for one class.
type node struct {
	net   *Network
	class carrier.Class
	name  string // canonical; empty if the class does not listen

	mu    sync.Mutex // guards ports
	ports map[carrier.Core]*port
}

// newPort creates the carrier of a context.
func (o *node) newPort(core carrier.Core) (carrier.Carrier, error) {
	p := &port{node: o, core: core, ends: map[*end]struct{}{}}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ports[core] = p
	return p, nil
}

func (o *node) all() (ports []*port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.ports {
		ports = append(ports, p)
	}
	return ports
}

func (o *node) remove(p *port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ports, p.core)
}

// close releases the name.
func (o *node) close() error {
	o.net.mu.Lock()
	defer o.net.mu.Unlock()
	if o.net.nodes[o.name] == o {
		delete(o.net.nodes, o.name)
	}
	return nil
}
