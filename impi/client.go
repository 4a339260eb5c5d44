package impi

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A Version is a version of IMPI.
type Version struct{ Major, Minor uint32 }

// Default represents, in CollXSize and CollMaxLinear, the value specified by version 0.0.
const Default = -1

const (
	defaultCollXSize     = 1024
	defaultCollMaxLinear = 4
	minMaxTag            = 32767
)

// A Client describes a client, which is an MPI implementation on one or more hosts.
type Client struct {
	Versions      []Version // supported versions, ascending; the first is 0.0
	PacketLen     uint32    // maximum number of data bytes in a packet that the client accepts, at least 1
	MaxTag        int32     // largest tag, at least 32767
	CollXSize     int32     // minimum size in bytes for which collective operations use long protocols, or Default
	CollMaxLinear int32     // minimum number of hosts for which collective operations use logarithmic protocols, or Default
	Hosts         []Host
}

// A Host describes an agent of a client.
type Host struct {
	Addr    [16]byte // IPv6 address
	Port    uint32   // listening port
	Ackmark uint32   // number of packets acknowledged by one PROTOACK, at least 1
	Hiwater uint32   // number of packets that may be sent without a PROTOACK, at least Ackmark
	Procs   []Proc
}

// procCount returns the number of processes on all hosts.
func (c *Client) procCount() (n int) {
	for _, h := range c.Hosts {
		n += len(h.Procs)
	}
	return n
}

// validate returns an error if a value is not allowed by the protocol.
func (c *Client) validate() error {
	if err := checkVersions(c.Versions); err != nil {
		return err
	}
	switch {
	case c.PacketLen < 1:
		return fmt.Errorf("impi: Client.PacketLen is %d, want at least 1", c.PacketLen)
	case c.MaxTag < minMaxTag:
		return fmt.Errorf("impi: Client.MaxTag is %d, want at least %d", c.MaxTag, minMaxTag)
	case c.CollXSize < Default || c.CollMaxLinear < Default:
		return fmt.Errorf("impi: CollXSize is %d and CollMaxLinear %d, want at least 0, or %d", c.CollXSize, c.CollMaxLinear, Default)
	}
	for i, h := range c.Hosts {
		if h.Port > math.MaxUint16 || h.Ackmark < 1 || h.Hiwater < h.Ackmark {
			return fmt.Errorf("impi: host %d has port %d, ackmark %d and hiwater %d", i, h.Port, h.Ackmark, h.Hiwater)
		}
	}
	return nil
}

// checkVersions returns an error unless vs is ascending and begins with 0.0, which every client must support.
func checkVersions(vs []Version) error {
	if len(vs) == 0 || vs[0] != (Version{}) {
		return fmt.Errorf("impi: versions %v, want 0.0 first", vs)
	}
	for i := 1; i < len(vs); i++ {
		if !vs[i-1].isBefore(vs[i]) {
			return fmt.Errorf("impi: versions %v, want ascending order", vs)
		}
	}
	return nil
}

// isBefore reports whether v is lower than w.
func (v Version) isBefore(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// encodeLabel returns the part that the client submits under the given label. Integers are big-endian.
func (c *Client) encodeLabel(label protocol.Label) (b []byte) {
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
		return u32(b, uint32(c.procCount()))
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
