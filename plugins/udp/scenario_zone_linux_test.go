package udp_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// linkLocal returns an address of this machine that is valid on its interface only, with that.
func linkLocal(t *testing.T, dev string) (ip netip.Addr, ifc net.Interface, ok bool) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifc := range all {
		addrs, _ := ifc.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() && (dev == "" || dev == ifc.Name) {
				return p.Addr(), ifc, true
			}
		}
	}
	return ip, ifc, false
}

const zoneEnv = "QUICKSILVER_ZONE_CHILD"

// TestZone checks that a node listens on, dials, answers and prints IPv6 addresses with their zone,
// given as a name or as a number. As root it uses the two ends of a link in a network namespace of
// its own, and always a link-local address of this machine if there is one.
func TestZone(t *testing.T) {
	if os.Getenv(zoneEnv) == "" {
		if _, err := exec.LookPath("ip"); err == nil && os.Getuid() == 0 {
			cmd := exec.Command(os.Args[0], "-test.run=^TestZone$", "-test.v")
			cmd.Env = append(os.Environ(), zoneEnv+"=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", output)
		}
		if ip, ifc, ok := linkLocal(t, ""); ok {
			testZone(t, ip, ifc, ifc)
		}
		return
	}
	for _, args := range []string{"link set lo up", "link add d0 type veth peer name d1", "link set d0 addrgenmode none", "link set d1 addrgenmode none",
		"addr add fe80::a/64 dev d0 nodad", "addr add fe80::b/64 dev d1 nodad", "link set d0 up", "link set d1 up"} {
		output, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", args, output)
	}
	ip, far, ok := linkLocal(t, "d1")
	require.True(t, ok)
	_, near, ok := linkLocal(t, "d0")
	require.True(t, ok)
	testZone(t, ip, far, near)
}

// testZone has classes at near send a message to one that listens at ip of far.
func testZone(t *testing.T, ip netip.Addr, far, near net.Interface) {
	each := map[string]udp.Options{"plain": {Trusted: true}, "portable": {Trusted: true, Portable: true}, "TLS": {TLS: mutualTLS()}}
	for name, opts := range each {
		for _, listen := range []string{"[" + ip.String() + "%" + far.Name + "]", "[" + ip.String() + "%" + strconv.Itoa(far.Index) + "]", "[::]"} {
			if opts.Portable && listen == "[::]" {
				continue // it is answered from an address that the system chooses
			}
			for _, zone := range []string{near.Name, strconv.Itoa(near.Index)} {
				t.Run(name+" "+listen+" from "+zone, func(t *testing.T) {
					to := open(t, "udp://"+listen+":0", opts, 1)
					self := to.cls.Addr().Name()
					port := self[strings.LastIndex(self, ":"):]
					if listen != "[::]" {
						require.Equal(t, "udp://["+ip.String()+"%"+far.Name+"]"+port, self)
					}
					from := open(t, "udp://", opts, 1)
					addr, err := na.ParseAddr("udp://[" + ip.String() + "%" + zone + "]" + port)
					require.NoError(t, err)
					sender := sendMessage(t, from.ctxs[0], addr, to.ctxs[0], "here", from, to)
					sendMessage(t, to.ctxs[0], sender, from.ctxs[0], "answer", from, to)
				})
			}
		}
	}
}
