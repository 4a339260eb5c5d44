package sim

import (
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"time"
)

// traceLen is the number of recent trace entries that a world keeps for error messages.
const traceLen = 256

// A traceEntry is one entry of the trace.
type traceEntry struct {
	at   time.Duration
	kind string
	name string
	a, b uint64
}

func (t *traceEntry) String() string {
	return fmt.Sprintf("%14v %-11s %s %d %#x", t.at, t.kind, t.name, t.a, t.b)
}

// mixHash folds v into the running hash h, using the 64-bit rounds of MurmurHash3.
func mixHash(h, v uint64) uint64 {
	v *= 0x87c37b91114253d5
	v = bits.RotateLeft64(v, 31) * 0x4cf5ad432745937f
	h = bits.RotateLeft64(h^v, 27)
	return h*5 + 0x52dce729
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum and length of b, which the trace contains in place of b.
func checksum(b []byte) uint64 { return uint64(crc32.Checksum(b, crcTable)) | uint64(len(b))<<32 }

// addTrace adds an entry to the hash, to the recent entries, and to Config.Trace. who is for human
// readers only and is not hashed, because it follows from the other values.
func (w *World) addTrace(kind, who string, a, b uint64) {
	now := time.Duration(w.now.Load())
	w.traceMu.Lock()
	w.hash = mixHash(mixHash(mixHash(mixHash(w.hash, uint64(now)), checksum([]byte(kind))), a), b)
	e := &w.recent[w.traceCount%traceLen]
	w.traceCount++
	*e = traceEntry{now, kind, who, a, b}
	if w.cfg.Trace != nil {
		_, _ = fmt.Fprintln(w.cfg.Trace, e.String())
	}
	w.traceMu.Unlock()
}

// Note adds an observation made by the program to the trace, such as a completion with its code or
// a value that was read.
func (w *World) Note(kind string, a, b uint64) {
	w.addTrace("note", kind, mixHash(checksum([]byte(kind)), a), b)
}

// Hash returns a fingerprint of everything that has happened: every delivered byte, fault, timer,
// resumed coroutine and Note, each with its virtual time. A given seed and program always produce
// the same hash.
func (w *World) Hash() uint64 {
	w.traceMu.Lock()
	defer w.traceMu.Unlock()
	return w.hash
}

// Dump writes the most recent entries of the trace, one per line.
func (w *World) Dump(to io.Writer) error {
	w.traceMu.Lock()
	defer w.traceMu.Unlock()
	first := uint64(0)
	if w.traceCount > traceLen {
		first = w.traceCount - traceLen
	}
	for i := first; i < w.traceCount; i++ {
		if _, err := fmt.Fprintln(to, w.recent[i%traceLen].String()); err != nil {
			return err
		}
	}
	return nil
}
