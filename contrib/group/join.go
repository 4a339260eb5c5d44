package group

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// Options configures how a process joins. Name is required.
type Options struct {
	// Name is the name of the member: 1 to 128 bytes without #, unique in the group. Of two processes of one name the one
	// that started last counts, also when its clock is behind.
	Name string
	// Addr is the address of the node for the other members. Empty means Node.Addr, which does for all hosts but 0.0.0.0.
	Addr string
	// Gossip is the host:port for memberlist, by UDP and TCP. Empty means the host of Addr and any port.
	Gossip string
	// Seeds are the host:port for memberlist of members; a host that has several addresses stands for all of them. One that answers is
	// enough. Join tries until one does. Without Seeds and Rendezvous the process is the first.
	Seeds []string
	// Rendezvous finds the Seeds: all processes that were started together call Join. It submits under LabelUser and waits for all
	// to be done; Leave and Close are the caller's.
	Rendezvous *rendezvous.Member
	// Key, of 16, 24 or 32 bytes, encrypts the gossip with AES; processes without it cannot join. Without a Key every process that
	// reaches the port can join, and read.
	Key []byte
	// Serves are the names of the services that the node has: see Group.Watch.
	Serves []string
	// Meta is up to 256 bytes of the program's own.
	Meta []byte
	// Probe is the time between two probes of a process. Zero means 500 ms. A process that does not answer has failed after some 5 to
	// 8 × Probe in a group of up to 64, earlier if it was killed.
	Probe time.Duration
	// Logger is for the log of memberlist. Nil means slog.Default().
	Logger *slog.Logger
}

// Join makes the process of node a member, and returns when a seed has accepted it, or it is the first. When ctx ends before, the error
// matches ctx's, and has the last error of a seed: a wrong Key leads to that. The error of invalid Options matches ErrInvalid.
func Join(ctx context.Context, node *qs.Node, o Options) (*Group, error) {
	return join(ctx, node, o, uint64(time.Now().UnixNano()))
}

// join is Join with an incarnation, which is raised above that of another known process of the name.
func join(ctx context.Context, node *qs.Node, o Options, incarnation uint64) (*Group, error) {
	if err := o.setDefaults(node); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	s := newGossip(&o, incarnation)
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	err := s.joinGroup(ctx, o.Rendezvous)
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("group: join: %w", err)
	}
	return Over(node, o.Name, s)
}

// setDefaults sets the defaults of o, and checks it.
func (o *Options) setDefaults(node *qs.Node) error {
	if o.Addr == "" {
		o.Addr = node.Addr().String()
	}
	if o.Probe == 0 {
		o.Probe = 500 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	u, err := url.Parse(o.Addr)
	if o.Gossip == "" && err == nil {
		o.Gossip = net.JoinHostPort(u.Hostname(), "0")
	}
	what := ""
	switch n := len(o.Key); {
	case o.Name == "" || len(o.Name) > 128:
		what = fmt.Sprintf("Name has %d bytes, want 1 to 128", len(o.Name))
	case strings.Contains(o.Name, "#"):
		what = fmt.Sprintf("Name %q contains #", o.Name)
	case n != 0 && n != 16 && n != 24 && n != 32:
		what = fmt.Sprintf("Key has %d bytes, want 16, 24 or 32", n)
	case len(o.Meta) > 256:
		what = fmt.Sprintf("Meta has %d bytes, want at most 256", len(o.Meta))
	case o.Probe < 10*time.Millisecond:
		what = fmt.Sprintf("Probe is %v, want at least 10ms", o.Probe)
	case err != nil || u.Scheme == "" || u.Host == "":
		what = fmt.Sprintf("Addr is %q, want an address such as tcp://host:port", o.Addr)
	default:
		for _, seed := range o.Seeds { // memberlist adds its own port to a seed without one: this process would join itself
			if _, port, err := splitHostPort(seed); err != nil {
				return fmt.Errorf("Seeds: %w", err)
			} else if port == 0 {
				return hg.Errorf(hg.ErrInvalid, "Seeds: address %s has no port", seed)
			}
		}
		return nil
	}
	return fmt.Errorf("%s: %w", what, hg.ErrInvalid)
}

// splitHostPort splits an address of memberlist into host and port.
func splitHostPort(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err == nil {
		var n uint64
		n, err = strconv.ParseUint(text, 10, 16)
		port = int(n)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", err, hg.ErrInvalid)
	}
	return host, port, err
}

// retransmits is how often a process passes on a message, for each decimal digit of the number of members. With k times in all a member
// misses it with a probability of e^-k. With memberlist's default of 4 some of 64 that start together missed each other for half a minute,
// until memberlist compared their states.
const retransmits = 8

// newConfig returns the configuration of memberlist.
func (s *gossip) newConfig() (*memberlist.Config, error) {
	host, port, err := splitHostPort(s.options.Gossip)
	if err != nil {
		return nil, fmt.Errorf("Gossip: %w", err)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	c := memberlist.DefaultLANConfig()
	c.Name = s.nodeName
	c.BindAddr, c.BindPort = host, port
	c.AdvertisePort = c.BindPort
	c.SecretKey = s.options.Key
	c.ProbeInterval, c.ProbeTimeout = s.options.Probe, s.options.Probe/2
	c.GossipInterval = s.options.Probe / 4
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 3, 3
	c.TCPTimeout = 4 * s.options.Probe
	c.PushPullInterval = 30 * s.options.Probe
	c.RetransmitMult = retransmits
	c.Events, c.Delegate, c.Ping, c.Alive = s, s, s, s
	c.Logger = s.newLogger()
	return c, nil
}

// A card is the description of a member that memberlist carries as its meta data.
type card struct {
	_msgpack struct{} `msgpack:",as_array"`

	Addr        string
	Serves      []string
	Meta        []byte
	Incarnation uint64
}

func (c *card) marshal() ([]byte, error) {
	b, err := msgpack.Marshal(c)
	if err == nil && len(b) > memberlist.MetaMaxSize {
		err = fmt.Errorf("Addr, Serves and Meta have %d bytes, want at most %d: %w", len(b), memberlist.MetaMaxSize, hg.ErrInvalid)
	}
	return b, err
}
