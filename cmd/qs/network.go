package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
)

// A network holds the network flags, which all commands share.
type network struct {
	transport string // transport of a target started by this command
	local     bool
	spin      time.Duration
	timeout   time.Duration
	busy      int
	profile   string
	handlers  string
	secrets   secrets
}

// measureFlags defines the flags of commands that measure performance.
func (n *network) measureFlags(fs *pflag.FlagSet) {
	n.peerFlags(fs)
	fs.DurationVar(&n.spin, "spin", 50*time.Microsecond, "`time` to poll before sleeping, while answers come fast; 0 for none")
	fs.StringVar(&n.profile, "cpuprofile", "", "`file` for a CPU profile of this process; a target that is started writes its own to FILE.target")
	fs.IntVar(&n.busy, "busy", 0, "`goroutines` that keep the processors busy, in each process")
}

// handlerFlag defines the flag that selects where a target's handlers run.
func (n *network) handlerFlag(c *cobra.Command) {
	c.Flags().StringVar(&n.handlers, "handlers", "inline", "where handlers of the target run: `inline`, on the goroutine that drives, dispatch or typed, on others")
	registerChoices(c, "handlers", "inline", "dispatch", "typed")
}

// peerFlags defines the flags that all connecting commands share.
func (n *network) peerFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&n.local, "local", false, "open sm:// beside tcp:// or udp://, and reach targets on this machine that do the same through it")
	fs.DurationVar(&n.timeout, "peer-timeout", 5*time.Second, "`time` of silence after which a peer counts as lost; at least 500ms")
	n.secrets.flags(fs)
	markConnection(fs, "local", "peer-timeout")
}

// markConnection marks the named flags as connection flags, which the help lists after a command's other flags.
func markConnection(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := fs.SetAnnotation(name, connectionFlag, []string{"true"}); err != nil {
			panic(err)
		}
	}
}

// childArgs returns the flags with which another qs process has the same network configuration.
func (n *network) childArgs() []string {
	args := []string{"--spin", n.spin.String(), "--peer-timeout", n.timeout.String(), "--busy", strconv.Itoa(n.busy)}
	if n.local {
		args = append(args, "--local")
	}
	if n.handlers != "" {
		args = append(args, "--handlers", n.handlers)
	}
	if n.profile != "" {
		args = append(args, "--cpuprofile", n.profile+".target")
	}
	return append(args, n.secrets.args()...)
}

// maxReserved is the maximum memory, in bytes, that is reserved for messages from peers. At 1 MiB for each peer, it
// suffices for about 250 peers.
const maxReserved = 256 << 20

// newConfig returns the configuration of a class that is opened at addr or calls a target at addr. Bodies are raw bytes
// unless a method sets a codec. The configuration allows many requests in flight.
func (n *network) newConfig(addr string) (hg.Config, error) {
	plugins, err := n.secrets.plugins(addr)
	if err != nil {
		return hg.Config{}, err
	}
	spin := n.spin
	if spin == 0 {
		spin = -1
	}
	return hg.Config{Codec: codec.Raw, NA: na.Config{
		Envelopes: 256, Budget: maxReserved, PeerTimeout: n.timeout, Spin: spin, Plugins: plugins,
	}}, nil
}

// startProfile starts the requested profile. The caller must call stop to finish the profile.
func (n *network) startProfile() (stop func(), err error) {
	if n.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(n.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// clientAddr returns the address at which to open a class that calls a target. The parameter addr is the target's
// address or transport.
func (n *network) clientAddr(addr string) string {
	scheme, _, _ := strings.Cut(addr, "://")
	return n.withSharedMemory(scheme + "://")
}

// withSharedMemory adds sm to the address of a class if shared memory is enabled.
func (n *network) withSharedMemory(addr string) string {
	if n.local && !strings.HasPrefix(addr, "sm://") {
		return addr + ",sm://"
	}
	return addr
}

// setTransport sets the transport from the value of --transport. The value "auto" selects tcp and sm.
func (n *network) setTransport(transport string) error {
	if n.transport = transport; transport == "auto" {
		n.transport, n.local = "tcp", true
	}
	if !slices.Contains(na.Schemes(), n.transport) {
		return usageError{fmt.Sprintf("--transport is %q, want %s or auto", transport, strings.Join(na.Schemes(), ", "))}
	}
	return nil
}

// anyListenAddr returns a local listen address for which a free port, or a free name for sm, is selected automatically.
func (n *network) anyListenAddr() string {
	if n.transport == "sm" {
		return "sm://*"
	}
	return n.withSharedMemory(n.transport + "://127.0.0.1:0")
}
