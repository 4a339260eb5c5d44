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

// Config holds what a class can be told. The zero value works.
type Config struct {
	// Plugins are looked at before the registered ones. Two of one scheme are an error: the options of one of them would be lost.
	Plugins []Plugin
	// Contexts is how many contexts the class may make. Zero means 16; at most 256.
	Contexts int
	// Eager bounds one unexpected or expected message in bytes, and with it each envelope. Zero means 4 KiB; from 256
	// bytes to 48 KiB. The smaller of the two sides' values counts.
	Eager int
	// Envelopes is how many unexpected messages each peer may have outstanding here (GER), beside ExpeditedEnvelopes. Zero means 32; at
	// most 4096.
	Envelopes int
	// MinEnvelopes is how few a peer may be offered when Budget runs short. Zero means 1, and Envelopes for those that
	// Peers counts. A peer that cannot be guaranteed so many is refused, with an error that says what was asked and what is
	// left.
	MinEnvelopes int
	// Peers is for how many peers Budget must do: Open offers each as many envelopes as that allows, and fails when these
	// are fewer than MinEnvelopes. More peers are admitted as far as Budget goes. Zero admits peers as they come.
	Peers int
	// Budget bounds the memory that is reserved for the envelopes of all peers, in bytes, EnvelopeOverhead for each
	// included. Zero means 64 MiB. Open fails where it does not hold the fewest envelopes of one peer. It is accounted, and touched only
	// when messages come: whether the machine has so much is not asked.
	Budget int64
	// Room bounds the memory, in bytes and beside Budget, for what peers send that is longer than an envelope: messages, and bodies of
	// calls. What finds none is lent, and fetched. Zero means a quarter of Budget, taken out of it.
	Room int64
	// Need and Want are what this side asks of its peers: how many unexpected messages it sends to one before they are
	// accepted. A peer that does not guarantee Need is refused; it need not reserve more than Want. Zero means whatever
	// the peer offers.
	Need, Want int
	// CreditBatch is how many freed envelopes make a frame of their own to tell the peer; fewer go with the next frame, or
	// when the peer has used all that it knows of. Zero means a quarter of Envelopes; more than Envelopes is an error.
	CreditBatch int
	// OnNoCredit says what becomes of a message for which the peer has no envelope free.
	OnNoCredit Policy
	// Reserve says who may use the last envelope that a peer has free.
	Reserve Reserve
	// Probe is after how long without an envelope a sender with messages waiting asks the peer. Zero means 200 ms.
	Probe time.Duration
	// SendQueue bounds the messages per peer that wait at the source for an envelope. Zero means 8192. One more fails
	// with ErrNoCredit.
	SendQueue int
	// PeerTimeout is how long a peer may be silent while something is open with it: an operation that waits for it, a message of it
	// that is not freed, a get or put of it that is served. Zero means 5 s; at least 500 ms.
	PeerTimeout time.Duration
	// Linger is how long a Shutdown whose context has no deadline lets what is under way end. Zero means 2 s, negative means
	// not at all.
	Linger time.Duration
	// Spin is how long Progress polls before it sleeps, while answers come fast: waking a sleeper takes longer than most
	// of them. Zero means 50 us, negative means none. One goroutine of the process spins at a time, and none with
	// GOMAXPROCS 1.
	Spin time.Duration
	// ConnectTimeout bounds making a connection, the handshake included. Zero means PeerTimeout.
	ConnectTimeout time.Duration
	// IdleTimeout is after how long a session that this side has dialled ends, if nothing goes on in it and its peer agrees. The next
	// operation dials again; nobody is told of a fault. Zero means 5 minutes, but never for a class that serves calls and does not listen:
	// its peers can call it in these sessions alone. Negative means never. It is looked at each tenth of PeerTimeout or so. Sessions that
	// peers have dialled are theirs to end. When Budget is short for one more peer, the session of either kind that has been idle for
	// longest ends, whatever IdleTimeout is.
	IdleTimeout time.Duration
	// CertificateGrace is how long what is under way in a session may go on after a certificate of the two sides that it was made with
	// has expired (with TLS: x509.Certificate.NotAfter). What begins after that goes in another session, which is dialled with the certificates
	// of then; without valid ones it fails, and NotRun. Each side looks at the certificate of its peer. Zero means 1 minute; negative means that
	// sessions outlive the certificates of their peers here.
	CertificateGrace time.Duration
	// Local says when a class with a second transport (see Open) uses that.
	Local Local
	// Name is what the process calls itself towards its peers, for logs and tools: Identity.Process. It is at most 64 bytes of printable
	// characters without parentheses. Empty means the base name of os.Args[0], so that peers can tell programs apart without a
	// setting, if it is such a name; none in the simulator, where no run depends on how the program was started. Every peer learns it.
	Name string
	// Logger gets what no error can carry. Nil means slog.Default().
	Logger *slog.Logger
}

// logger returns Logger, or slog.Default().
func (c *Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

// validate reports every bad field at once.
func (c *Config) validate() error {
	var errs []error
	bad := func(field string, v any, want string) {
		errs = append(errs, fmt.Errorf("na: config: %s is %v, want %s: %w", field, v, want, ErrInvalid))
	}
	for i, p := range c.Plugins {
		if p == nil {
			bad("Plugins", "nil at "+strconv.Itoa(i), "plugins")
		} else if slices.ContainsFunc(c.Plugins[:i], func(other Plugin) bool { return other != nil && other.Scheme() == p.Scheme() }) {
			bad("Plugins", "two plugins of scheme "+p.Scheme(), "one: put the options of both into it")
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
		bad("Name", strconv.Quote(c.Name), "at most 64 bytes of printable characters without parentheses, or none for the name of the program")
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

// withDefaults returns c with every zero field set.
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

// idleTimeout is the default of Config.IdleTimeout. Most pauses of programs are shorter; a session that has been idle for longer costs more
// memory than the round trip of a new dial is worth.
const idleTimeout = 5 * time.Minute

// maxTime bounds every duration, so that sums of them do not overflow a Duration.
const maxTime time.Duration = math.MaxInt64 / 4

func defaultTo[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
