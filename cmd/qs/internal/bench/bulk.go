package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
)

// measureBulkRate measures the throughput of transfers of size bytes each, in MiB per second. It
// keeps count transfers in flight at a time.
func (p *Perf) measureBulkRate(dir moveDir, size int64, count int) (float64, error) {
	m, err := p.newMover(dir, size, count)
	if err != nil {
		return 0, err
	}
	defer m.close()
	if err := m.moveOnce(true); err != nil {
		return 0, err
	}
	return p.measureMoves(m)
}

// measureMoves makes the transfers of m repeatedly and returns the throughput in MiB per second.
func (p *Perf) measureMoves(m *mover) (float64, error) {
	moved := int64(0)
	begun := time.Now()
	for moved == 0 || p.goesOn(begun.Add(p.Time)) {
		if err := m.moveOnce(false); err != nil {
			return 0, err
		}
		moved += int64(len(m.buf)) * int64(m.count)
	}
	return float64(moved) / (1 << 20) / time.Since(begun).Seconds(), p.ended(nil)
}

// A mover makes transfers between its memory and the target's. The target executes the transfers on
// request.
type mover struct {
	c     *call
	buf   []byte
	alloc bool // buf was allocated by bulk.Alloc and must be freed
	mem   *bulk.Handle
	dir   moveDir
	count int
}

func (p *Perf) newMover(dir moveDir, size int64, count int) (*mover, error) {
	m := &mover{dir: dir, count: count}
	var err error
	if m.alloc = p.Alloc && dir == pull; m.alloc {
		m.buf, err = bulk.Alloc(int(size))
	} else {
		m.buf = make([]byte, size)
	}
	if err != nil {
		return nil, err
	}
	access := bulk.WriteOnly
	if dir == pull {
		access = bulk.ReadOnly
		fillPattern(m.buf)
	}
	if m.mem, err = bulk.Create(p.hctx, bulk.Options{Access: access, Eager: -1}, m.buf); err != nil {
		return nil, err
	}
	if m.c, err = p.newCall(nil); err != nil {
		return nil, err
	}
	return m, m.c.h.Reset(p.peer, p.move)
}

// moveOnce makes count transfers and waits for them to complete. If check is true, the receiving
// side verifies the data.
func (m *mover) moveOnce(check bool) error {
	r := moveRequest{dir: m.dir, check: check && m.dir == pull, count: uint32(m.count), size: uint64(len(m.buf))}
	var err error
	if m.c.in, err = m.mem.AppendBinary(r.append(m.c.in[:0])); err != nil {
		return err
	}
	if err := m.c.forward(); err != nil {
		return err
	}
	if check && m.dir == push && !isPattern(m.buf) {
		return fmt.Errorf("pushed data is corrupt (%d bytes)", len(m.buf))
	}
	return nil
}

func (m *mover) close() {
	m.c.h.Close()
	_ = m.mem.CloseWait(context.Background())
	if m.alloc {
		bulk.Free(m.buf)
	}
}
