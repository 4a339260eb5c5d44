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

// Options configures Join. Name is required.
type Options struct {
	// Name is the member's name, which must be unique in the group: 1 to 128 bytes, without #. If two processes use the
	// same name, the one that started last takes precedence, even if its clock is behind.
	Name string
	// Addr is the node's address for the other members. Empty means Node.Addr, which works unless the node listens on
	// 0.0.0.0.
	Addr string
	// Gossip is the host:port on which memberlist listens, using both UDP and TCP. Empty means the host of Addr and any
	// free port.
	Gossip string
	// Seeds are the memberlist addresses (host:port) of existing members. A host name with several addresses stands for
	// all of them. Join retries until one seed answers. If neither Seeds nor Rendezvous is set, the process is the
	// first member.
	Seeds []string
	// Rendezvous discovers the Seeds if all processes that were started together call Join. Join submits data under
	// LabelUser and waits until all processes have done so. The caller remains responsible for calling Leave and Close.
	Rendezvous *rendezvous.Member
	// Key encrypts the gossip with AES. It has 16, 24 or 32 bytes. Processes without the key cannot join. If Key is
	// nil, every process that can reach the port can join and read.
	Key []byte
	// Serves lists the names of the services that the node provides. See Group.Watch.
	Serves []string
	// Meta is application data, at most 256 bytes.
	Meta []byte
	// Probe is the interval between two probes of a process. Zero means 500 ms. In a group of up to 64 members, a
	// process that does not answer is declared failed after about 5 to 8 × Probe, or sooner if it was killed.
	Probe time.Duration
	// Logger receives memberlist's log messages. Nil means slog.Default().
	Logger *slog.Logger
}

// Join makes the process of node a member of the group. It returns once a seed has accepted it, or at once if it is the
// first member. If ctx is done first, the error matches that of ctx and includes the last error from a seed. A wrong
// Key also leads to that error. For invalid Options the error matches ErrInvalid.
func Join(ctx context.Context, node *qs.Node, o Options) (*Group, error) {
	return join(ctx, node, o, uint64(time.Now().UnixNano()))
}

// join is like Join, but uses the given incarnation, which it raises above that of any other known process with the
// same name.
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

// setDefaults fills in the defaults of o and validates it.
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
		for _, seed := range o.Seeds { // memberlist would add its own port to a seed without one, and this process would join itself
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

// splitHostPort splits a memberlist address into host and port.
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

// retransmits is the number of times that a process forwards a message, for each decimal digit of the number of
// members. With k transmissions in total, a member misses the message with a probability of e^-k. With memberlist's
// default of 4, some of 64 members that started together missed each other for half a minute, until memberlist next
// exchanged full states.
const retransmits = 8

// newConfig returns memberlist's configuration.
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

// A card describes a member. Memberlist carries it as the node's metadata.
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
