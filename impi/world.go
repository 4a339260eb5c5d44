package impi

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A World contains the descriptions of all clients and the values that they have in common. It is the same at every
// client, because every client receives the same bytes.
type World struct {
	Clients       []Client // indexed by rank
	PacketLen     uint32   // smallest value of all clients
	MaxTag        int32    // smallest value of all clients
	CollXSize     int32    // equal for all clients; never Default
	CollMaxLinear int32    // equal for all clients; never Default
}

// Exchange submits the 14 labels of client c, calls Done, and blocks until the startup is complete. The member must
// have the form protocol.Strict. If Exchange returns an error, the caller should close the member.
func Exchange(ctx context.Context, m *rendezvous.Member, c Client) (*World, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := newWorldReader(m.Size())
	for _, label := range labels {
		set, err := m.CollectWait(ctx, label, c.encodeLabel(label))
		if err != nil {
			return nil, err
		}
		if err := r.readSet(set); err != nil {
			return nil, err
		}
	}
	return &r.world, m.DoneWait(ctx)
}

// Version returns the highest version that clients i and j have in common. All clients support 0.0.
func (w *World) Version(i, j int) (v Version) {
	for _, x := range w.Clients[i].Versions {
		if slices.Contains(w.Clients[j].Versions, x) {
			v = x
		}
	}
	return v
}

// A worldReader builds a World from the sets of the labels, which it reads in ascending order. It allocates hosts and
// processes when their addresses arrive, not when their counts are announced.
type worldReader struct {
	world     World
	hosts     []uint32 // number of hosts, by client
	procs     []uint32 // number of processes, by client; must equal the sum over the client's hosts
	hostProcs []uint32 // number of processes, by host, over all clients
}

func newWorldReader(size int) *worldReader {
	return &worldReader{world: World{Clients: make([]Client, size), PacketLen: math.MaxUint32, MaxTag: math.MaxInt32}}
}

// readSet reads a set. Every client must have submitted the label, because version 0.0 requires all 14.
func (r *worldReader) readSet(s protocol.Set) error {
	for rank := range r.world.Clients {
		if !s.Mask.Has(rank) {
			return fmt.Errorf("impi: label %v missing from client %d", s.Label, rank)
		}
	}
	err := r.readLabel(s.Label, s.Data)
	if err != nil {
		return fmt.Errorf("impi: label %v: %w", s.Label, err)
	}
	return nil
}

// readLabel reads the data of a label.
func (r *worldReader) readLabel(label protocol.Label, data []byte) error {
	switch {
	case label == LabelVersion:
		return r.readVersions(data)
	case label < LabelHostAddr:
		return r.readPerClient(label, data)
	case label < LabelProcAddr:
		return r.readPerHost(label, data)
	default:
		return r.readPerProc(label, data)
	}
}

// readVersions reads the concatenated version lists of all clients. Each list is ascending and begins with 0.0, so
// 0.0 marks the boundaries.
func (r *worldReader) readVersions(data []byte) error {
	if len(data)%8 != 0 {
		return fmt.Errorf("%d bytes", len(data))
	}
	rank := -1
	for ; len(data) > 0; data = data[8:] {
		v := Version{binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])}
		if v == (Version{}) {
			rank++
		}
		if rank < 0 || rank >= len(r.world.Clients) {
			return fmt.Errorf("version lists do not match %d clients", len(r.world.Clients))
		}
		c := &r.world.Clients[rank]
		c.Versions = append(c.Versions, v)
	}
	for i := range r.world.Clients {
		if err := checkVersions(r.world.Clients[i].Versions); err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
	}
	return nil
}

// readPerClient reads a label with one number per client.
func (r *worldReader) readPerClient(label protocol.Label, data []byte) error {
	w := &r.world
	if len(data) != 4*len(w.Clients) {
		return fmt.Errorf("%d bytes for %d clients", len(data), len(w.Clients))
	}
	for rank := range w.Clients {
		c, v := &w.Clients[rank], binary.BigEndian.Uint32(data[4*rank:])
		switch label {
		case LabelHosts:
			r.hosts = append(r.hosts, v)
		case LabelProcs:
			r.procs = append(r.procs, v)
		case LabelPacketLen:
			c.PacketLen = v
			w.PacketLen = min(w.PacketLen, v)
			if v < 1 {
				return fmt.Errorf("client %d has packet length 0", rank)
			}
		case LabelMaxTag:
			c.MaxTag = int32(v)
			w.MaxTag = min(w.MaxTag, c.MaxTag)
			if c.MaxTag < minMaxTag {
				return fmt.Errorf("client %d has maximum tag %d", rank, c.MaxTag)
			}
		case LabelCollXSize:
			c.CollXSize = int32(v)
			if err := checkAgreed(&w.CollXSize, rank, c.CollXSize, defaultCollXSize); err != nil {
				return err
			}
		case LabelCollMaxLinear:
			c.CollMaxLinear = int32(v)
			if err := checkAgreed(&w.CollMaxLinear, rank, c.CollMaxLinear, defaultCollMaxLinear); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAgreed returns an error unless the value of the client with the given rank equals the value of client 0, which
// is in *all. If rank is 0, checkAgreed stores the value in *all. If v is Default, the value is def. Otherwise it is
// v.
func checkAgreed(all *int32, rank int, v, def int32) error {
	if v == Default {
		v = def
	}
	if rank == 0 {
		*all = v
	}
	if v < 0 || v != *all {
		return fmt.Errorf("client %d has %d, client 0 has %d", rank, v, *all)
	}
	return nil
}

// readPerHost reads a label with one value per host.
func (r *worldReader) readPerHost(label protocol.Label, data []byte) error {
	size := 4
	if label == LabelHostAddr {
		size = 16
	}
	if n := sumOf(r.hosts); int64(len(data)) != n*int64(size) {
		return fmt.Errorf("%d bytes for %d hosts", len(data), n)
	}
	for rank := range r.world.Clients {
		c := &r.world.Clients[rank]
		if label == LabelHostAddr {
			c.Hosts = make([]Host, r.hosts[rank])
		}
		for i := range c.Hosts {
			h, v := &c.Hosts[i], binary.BigEndian.Uint32(data)
			switch label {
			case LabelHostAddr:
				copy(h.Addr[:], data)
			case LabelHostPort:
				h.Port = v
			case LabelHostProcs:
				r.hostProcs = append(r.hostProcs, v)
			case LabelHostAckmark:
				h.Ackmark = v
			case LabelHostHiwater:
				h.Hiwater = v
				if h.Ackmark < 1 || v < h.Ackmark {
					return fmt.Errorf("client %d, host %d: ackmark %d, hiwater %d", rank, i, h.Ackmark, v)
				}
			}
			data = data[size:]
		}
		if label == LabelHostProcs {
			of := r.hostProcs[len(r.hostProcs)-len(c.Hosts):]
			if n := sumOf(of); n != int64(r.procs[rank]) {
				return fmt.Errorf("hosts of client %d have %d processes, want %d", rank, n, r.procs[rank])
			}
		}
	}
	return nil
}

// readPerProc reads a label with one value per process.
func (r *worldReader) readPerProc(label protocol.Label, data []byte) error {
	n, size := sumOf(r.hostProcs), 16
	if label == LabelProcPID { // 8 bytes in most implementations, 4 in the text of the draft; the same for all clients
		size = 8
		if int64(len(data)) == 4*n {
			size = 4
		}
	}
	if int64(len(data)) != n*int64(size) {
		return fmt.Errorf("%d bytes for %d processes", len(data), n)
	}
	counts := r.hostProcs
	for i := range r.world.Clients {
		for k := range r.world.Clients[i].Hosts {
			h := &r.world.Clients[i].Hosts[k]
			if label == LabelProcAddr {
				h.Procs, counts = make([]Proc, counts[0]), counts[1:]
			}
			for p := range h.Procs {
				h.Procs[p].decodeLabel(label, data[:size])
				data = data[size:]
			}
		}
	}
	return nil
}

// decodeLabel sets the field of p that corresponds to label.
func (p *Proc) decodeLabel(label protocol.Label, b []byte) {
	switch {
	case label == LabelProcAddr:
		copy(p.Host[:], b)
	case len(b) == 4:
		p.PID = int64(binary.BigEndian.Uint32(b))
	default:
		p.PID = int64(binary.BigEndian.Uint64(b))
	}
}

// sumOf returns the sum of counts.
func sumOf(counts []uint32) (n int64) {
	for _, c := range counts {
		n += int64(c)
	}
	return n
}
