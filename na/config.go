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

// A Config configures a class. The zero value is a valid configuration.
type Config struct {
	// Plugins are searched before the registered plugins. Two plugins with the same scheme are an
	// error, because the options of one would be ignored.
	Plugins []Plugin
	// Contexts is the maximum number of contexts of the class, at most 256. Zero means 16.
	Contexts int
	// Eager is the maximum size in bytes of an unexpected or expected message, and therefore of an
	// envelope. It must be between 256 bytes and 48 KiB. Zero means 4 KiB. The smaller value of the
	// two sides applies.
	Eager int
	// Envelopes is the number of unexpected messages that each peer is guaranteed to have
	// outstanding here (GER), in addition to ExpeditedEnvelopes. It must not exceed 4096. Zero
	// means 32.
	Envelopes int
	// MinEnvelopes is the minimum number of envelopes that a peer is offered when Budget runs
	// short. Zero means 1, or Envelopes for the first Peers peers. A peer that cannot be guaranteed
	// that many is refused, with an error that states the requested and the available number.
	MinEnvelopes int
	// Peers is the number of peers for which Budget must suffice. Open divides Budget by Peers, and
	// fails if that yields fewer than MinEnvelopes envelopes for each. Further peers are admitted
	// while Budget lasts. Zero means that peers are admitted in the order in which they connect.
	Peers int
	// Budget is the maximum memory in bytes reserved for the envelopes of all peers, including
	// EnvelopeOverhead for each. Zero means 64 MiB. Open fails if it is too small for MinEnvelopes
	// of a single peer. The memory is only accounted for in advance. It is allocated as messages
	// arrive, and Open does not check that the machine has that much.
	Budget int64
	// Room is the maximum memory in bytes, in addition to Budget, for received messages and call
	// bodies that are longer than an envelope. If there is no room for one, the peer lends its
	// memory instead and this side fetches the data. Zero means a quarter of Budget, which is
	// subtracted from Budget.
	Room int64
	// Need and Want specify how many unexpected messages this side must be able to send to a peer
	// before any of them is accepted. A peer that does not guarantee Need is refused. A peer does
	// not have to reserve more than Want. Zero means the number that the peer offers.
	Need, Want int
	// CreditBatch is the number of freed envelopes that causes a separate frame to announce them to
	// the peer. Fewer are announced with the next frame, or when the peer has used all the
	// envelopes announced to it. It must not exceed Envelopes. Zero means a quarter of Envelopes.
	CreditBatch int
	// OnNoCredit is the policy for a message when the peer has no free envelope for it.
	OnNoCredit Policy
	// Reserve is the policy for a peer's last free envelope.
	Reserve Reserve
	// Probe is how long a sender with queued messages waits for an envelope before it requests the
	// current credit from the peer. Zero means 200 ms.
	Probe time.Duration
	// SendQueue is the maximum number of messages to a peer that wait here for an envelope. Further
	// messages fail with ErrNoCredit. Zero means 8192.
	SendQueue int
	// PeerTimeout is how long a peer may be silent before it is declared lost. It applies while an
	// operation waits for the peer, a message from it has not been freed, or a get or put that it
	// requested is being served. It must be at least 500 ms. Zero means 5 s.
	PeerTimeout time.Duration
	// Linger is how long Shutdown waits for operations in flight if its context has no deadline.
	// Zero means 2 s. A negative value means that it does not wait.
	Linger time.Duration
	// Spin is how long Progress polls before it sleeps, while responses arrive faster than a
	// sleeping goroutine could be woken. Zero means 50 µs. A negative value disables spinning. At
	// most one goroutine of the process spins at a time, and none does if GOMAXPROCS is 1.
	Spin time.Duration
	// ConnectTimeout is the maximum time to establish a connection, including the handshake. Zero
	// means PeerTimeout.
	ConnectTimeout time.Duration
	// IdleTimeout is how long a session that this side dialed may be idle. The session is then
	// closed if the peer agrees, without a call to OnFault, and the next operation dials again. The
	// time is checked about every tenth of PeerTimeout. Sessions that peers dialed are closed by
	// the peers.
	//
	// Zero means 5 minutes, except that a class that serves calls and does not listen never closes
	// idle sessions, because its peers can reach it only through them. A negative value means
	// never. If Budget is too small for another peer, the session that has been idle longest is
	// closed, regardless of IdleTimeout.
	IdleTimeout time.Duration
	// CertificateGrace is how long operations in flight in a session may continue after a
	// certificate of either side has expired (with TLS: x509.Certificate.NotAfter). Operations
	// started after the expiry use another session, which is dialed with the current certificates.
	// If those are not valid, the operations fail with fate NotRun. Each side checks its peer's
	// certificate. Zero means 1 minute. A negative value means that this side lets sessions outlive
	// its peers' certificates.
	CertificateGrace time.Duration
	// Local determines when a class with a second transport (see Open) uses it.
	Local Local
	// Name is the name of this process, which peers see in logs, in tools and as Identity.Process.
	// It has at most 64 bytes, all printable characters other than parentheses. If Name is empty,
	// the base name of os.Args[0] is used if it qualifies. The simulator uses no name in that case,
	// because its runs must not depend on how the program was started.
	Name string
	// Logger receives messages that cannot be returned as errors. If nil, slog.Default() is used.
	Logger *slog.Logger
}

// logger returns c.Logger, or slog.Default() if that is nil.
func (c *Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

// validate returns an error that lists all invalid fields.
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

// withDefaults returns a copy of c with every zero field set to its default.
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

// idleTimeout is the default for Config.IdleTimeout. It is longer than most programs pause between
// operations. Beyond it, keeping a session in memory costs more than the round trip to dial again.
const idleTimeout = 5 * time.Minute

// maxTime limits every configured duration, so that sums of durations do not overflow.
const maxTime time.Duration = math.MaxInt64 / 4

func defaultTo[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
