package impi

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A Version is one of IMPI.
type Version struct{ Major, Minor uint32 }

// Default stands for the value that version 0.0 lays down, in CollXSize and CollMaxLinear.
const Default = -1

const (
	defaultCollXSize     = 1024
	defaultCollMaxLinear = 4
	minMaxTag            = 32767
)

// A Client is what one client says about itself: an MPI implementation on some hosts.
type Client struct {
	Versions      []Version // that it speaks, ascending; the first is 0.0
	PacketLen     uint32    // the most bytes of data in a packet that it accepts, at least 1
	MaxTag        int32     // at least 32767
	CollXSize     int32     // bytes from which collective operations use long protocols, or Default
	CollMaxLinear int32     // hosts from which they use logarithmic protocols, or Default
	Hosts         []Host
}

// A Host is one agent of a client.
type Host struct {
	Addr    [16]byte // IPv6
	Port    uint32   // where it listens
	Ackmark uint32   // packets after which it sends credit, at least 1
	Hiwater uint32   // packets that may be without credit, at least Ackmark
	Procs   []Proc
}

func (c *Client) procs() (n int) {
	for _, h := range c.Hosts {
		n += len(h.Procs)
	}
	return n
}

// validate reports what the protocol does not allow.
func (c *Client) validate() error {
	if err := checkVersions(c.Versions); err != nil {
		return err
	}
	switch {
	case c.PacketLen < 1:
		return fmt.Errorf("impi: packets of %d bytes", c.PacketLen)
	case c.MaxTag < minMaxTag:
		return fmt.Errorf("impi: largest tag is %d, want at least %d", c.MaxTag, minMaxTag)
	case c.CollXSize < Default || c.CollMaxLinear < Default:
		return fmt.Errorf("impi: collective limits %d and %d, want at least 0, or %d", c.CollXSize, c.CollMaxLinear, Default)
	}
	for i, h := range c.Hosts {
		if h.Port > math.MaxUint16 || h.Ackmark < 1 || h.Hiwater < h.Ackmark {
			return fmt.Errorf("impi: host %d has port %d, ackmark %d and hiwater %d", i, h.Port, h.Ackmark, h.Hiwater)
		}
	}
	return nil
}

// checkVersions: ascending, and 0.0 is among them, so it is the first.
func checkVersions(vs []Version) error {
	if len(vs) == 0 || vs[0] != (Version{}) {
		return fmt.Errorf("impi: versions %v do not begin with 0.0", vs)
	}
	for i := 1; i < len(vs); i++ {
		if !vs[i-1].less(vs[i]) {
			return fmt.Errorf("impi: versions %v do not ascend", vs)
		}
	}
	return nil
}

func (v Version) less(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// part returns what the client submits under a label. Integers are big-endian.
func (c *Client) part(label protocol.Label) (b []byte) {
	u32 := binary.BigEndian.AppendUint32
	switch label {
	case LabelVersion:
		for _, v := range c.Versions {
			b = u32(u32(b, v.Major), v.Minor)
		}
		return b
	case LabelHosts:
		return u32(b, uint32(len(c.Hosts)))
	case LabelProcs:
		return u32(b, uint32(c.procs()))
	case LabelPacketLen:
		return u32(b, c.PacketLen)
	case LabelMaxTag:
		return u32(b, uint32(c.MaxTag))
	case LabelCollXSize:
		return u32(b, uint32(c.CollXSize))
	case LabelCollMaxLinear:
		return u32(b, uint32(c.CollMaxLinear))
	}
	for _, h := range c.Hosts {
		switch label {
		case LabelHostAddr:
			b = append(b, h.Addr[:]...)
		case LabelHostPort:
			b = u32(b, h.Port)
		case LabelHostProcs:
			b = u32(b, uint32(len(h.Procs)))
		case LabelHostAckmark:
			b = u32(b, h.Ackmark)
		case LabelHostHiwater:
			b = u32(b, h.Hiwater)
		}
		for _, p := range h.Procs {
			switch label {
			case LabelProcAddr:
				b = append(b, p.Host[:]...)
			case LabelProcPID:
				b = binary.BigEndian.AppendUint64(b, uint64(p.PID))
			}
		}
	}
	return b
}
