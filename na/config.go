package na

import (
	"errors"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"time"
)

// Config configures a class. The zero value works.
type Config struct {
	// Plugins are searched before the registered ones. Two of the same scheme are an error, because
	// the options of one would be lost.
	Plugins []Plugin
	// Contexts limits the contexts of the class. Zero means 16; at most 256.
	Contexts int
	// Eager limits an unexpected or expected message, and with it each envelope, in bytes. Zero
	// means 4 KiB; from 256 bytes to 48 KiB. The smaller value of the two sides applies.
	Eager int
	// Envelopes is the number of unexpected messages that each peer is guaranteed to have
	// outstanding here (GER), in addition to ExpeditedEnvelopes. Zero means 32; at most 4096.
	Envelopes int
	// MinEnvelopes is the lowest number of envelopes that a peer is offered when Budget runs short.
	// Zero means 1, or Envelopes for the first Peers peers. A peer that cannot be guaranteed so
	// many is refused, with an error that has the requested and the free number.
	MinEnvelopes int
	// Peers is the number of peers that Budget must be sufficient for: Open divides it by Peers,
	// and fails if that gives fewer envelopes than MinEnvelopes. More peers are admitted as long as
	// Budget lasts. Zero admits peers in the order in which they connect.
	Peers int
	// Budget limits the memory that is reserved for the envelopes of all peers, in bytes, including
	// EnvelopeOverhead for each. Zero means 64 MiB. Open fails if it is too small for MinEnvelopes
	// of one peer. The memory is only accounted, and allocated when messages arrive: it is not
	// checked whether the machine has so much.
	Budget int64
	// Room limits the memory, in bytes and in addition to Budget, for received messages and bodies
	// of calls that are longer than an envelope. For those that find no room the peer lends its
	// memory instead, and this side fetches it. Zero means a quarter of Budget, which is subtracted
	// from it.
	Room int64
	// Need and Want are the requirements on peers: how many unexpected messages this side sends to
	// a peer before they are accepted. A peer that does not guarantee Need is refused. A peer need
	// not reserve more than Want. Zero means the number that the peer offers.
	Need, Want int
	// CreditBatch is the number of freed envelopes that are announced to the peer in a frame of
	// their own. Fewer are announced with the next frame, or when the peer has used all that it
	// knows of. Zero means a quarter of Envelopes; more than Envelopes is an error.
	CreditBatch int
	// OnNoCredit is the policy for a message for which the peer has no free envelope.
	OnNoCredit Policy
	// Reserve is the policy for the last free envelope of a peer.
	Reserve Reserve
	// Probe is how long a sender with waiting messages waits for an envelope before it asks the
	// peer for its credit. Zero means 200 ms.
	Probe time.Duration
	// SendQueue limits the messages to a peer that wait here for an envelope. One more fails with
	// ErrNoCredit. Zero means 8192.
	SendQueue int
	// PeerTimeout is how long a peer may be silent before it is lost, while there is an operation
	// that waits for it, a message of it that was not freed, or a get or put of it that is being
	// served. Zero means 5 s; at least 500 ms.
	PeerTimeout time.Duration
	// Linger is how long a Shutdown whose context has no deadline waits for operations in flight.
	// Zero means 2 s, negative means that it does not wait.
	Linger time.Duration
	// Spin is how long Progress polls before it sleeps, while answers arrive faster than a sleeping
	// goroutine could be woken. Zero means 50 us, negative means that it does not. One goroutine of
	// the process spins at a time, and none with GOMAXPROCS 1.
	Spin time.Duration
	// ConnectTimeout limits the time to make a connection, including the handshake. Zero means
	// PeerTimeout.
	ConnectTimeout time.Duration
	// IdleTimeout is how long a session that this side has dialed may be idle. Then it ends, if the
	// peer agrees; OnFault is not called, and the next operation dials again. It is checked about
	// every tenth of PeerTimeout. Sessions that peers have dialed are ended by the peers.
	//
	// Zero means 5 minutes; but never for a class that serves calls and does not listen, because
	// its peers can reach it only in these sessions. Negative means never. If Budget is too small
	// for another peer, the session that has been idle for longest ends, whatever IdleTimeout is.
	IdleTimeout time.Duration
	// CertificateGrace is how long operations in flight in a session may go on after a certificate
	// of either side has expired (with TLS: x509.Certificate.NotAfter). Operations that start after
	// the expiry use another session, which is dialed with the current certificates; if those are
	// not valid they fail, with NotRun. Each side checks the certificate of its peer. Zero means 1
	// minute; negative means that this side lets sessions outlive the certificates of its peers.
	CertificateGrace time.Duration
	// Local selects when a class with a second transport (see Open) uses that.
	Local Local
	// Name is the name of this process that peers see in logs and tools: Identity.Process. It has
	// at most 64 bytes of printable characters without parentheses. Empty means the base name of
	// os.Args[0] if it is such a name, or none in the simulator, whose runs must not depend on how
	// the program was started.
	Name string
	// Logger receives the messages that cannot be returned as errors. Nil means slog.Default().
	Logger *slog.Logger
}

// logger returns Logger, or slog.Default().
func (c *Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

// validate returns an error that lists every invalid field.
func (c *Config) validate() error {
	var errs []error
	bad := func(field string, v any, want string) {
		errs = append(errs, fmt.Errorf("na: config: %s is %v, want %s: %w", field, v, want, ErrInvalid))
	}
	for i, p := range c.Plugins {
		if p == nil {
			bad("Plugins", "nil at index "+strconv.Itoa(i), "a plugin")
		} else if slices.ContainsFunc(c.Plugins[:i], func(other Plugin) bool { return other != nil && other.Scheme() == p.Scheme() }) {
			bad("Plugins", "two plugins of scheme "+p.Scheme(), "one")
		}
	}
	if c.Contexts < 0 || c.Contexts > 256 {
		bad("Contexts", c.Contexts, "1 to 256, or 0 for 16")
	}
	if c.Eager != 0 && (c.Eager < 256 || c.Eager > 48<<10) {
		bad("Eager", c.Eager, "256 to 49152, or 0 for 4096")
	}
	if c.Envelopes < 0 || c.Envelopes > 4096 {
		bad("Envelopes", c.Envelopes, "1 to 4096, or 0 for 32")
	}
	if c.Budget < 0 {
		bad("Budget", c.Budget, "a number of bytes, or 0 for 64 MiB")
	}
	if c.Room < 0 {
		bad("Room", c.Room, "a number of bytes, or 0 for a quarter of Budget")
	}
	if c.SendQueue < 0 {
		bad("SendQueue", c.SendQueue, "a number of messages, or 0 for 8192")
	}
	if c.Name != "" && !frame.ValidName(c.Name) {
		bad("Name", strconv.Quote(c.Name), "at most 64 printable characters without parentheses, or empty for the program's name")
	}
	if c.Local > LocalAlways {
		bad("Local", c.Local, "LocalAuto, LocalNever or LocalAlways")
	}
	c.validateFlow(bad)
	if c.PeerTimeout != 0 && c.PeerTimeout < 500*time.Millisecond {
		bad("PeerTimeout", c.PeerTimeout, "at least 500ms, or 0 for 5s")
	}
	if c.ConnectTimeout < 0 {
		bad("ConnectTimeout", c.ConnectTimeout, "a duration, or 0 for PeerTimeout")
	}
	return errors.Join(errs...)
}

// withDefaults returns c with the default in every zero field.
func (c Config) withDefaults() Config {
	defaultTo(&c.Contexts, 16)
	defaultTo(&c.Eager, 4<<10)
	defaultTo(&c.Envelopes, 32)
	defaultTo(&c.Budget, 64<<20)
	defaultTo(&c.SendQueue, 8192)
	defaultTo(&c.Probe, 200*time.Millisecond)
	defaultTo(&c.PeerTimeout, 5*time.Second)
	defaultTo(&c.ConnectTimeout, c.PeerTimeout)
	defaultTo(&c.Linger, 2*time.Second)
	defaultTo(&c.CertificateGrace, time.Minute)
	defaultTo(&c.Spin, 50*time.Microsecond)
	for _, d := range []*time.Duration{&c.Probe, &c.PeerTimeout, &c.ConnectTimeout, &c.Spin, &c.IdleTimeout, &c.CertificateGrace} {
		*d = min(*d, maxTime)
	}
	return c
}

// idleTimeout is the default of Config.IdleTimeout. Most pauses of programs are shorter. The memory
// of a session that is idle for longer costs more than the round trip of a new dial.
const idleTimeout = 5 * time.Minute

// maxTime limits every duration, so that sums of them do not overflow a Duration.
const maxTime time.Duration = math.MaxInt64 / 4

func defaultTo[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
