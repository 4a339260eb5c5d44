//go:build unix

package framing_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// truncatedMapping returns a mapping whose file has been cut to half of its length.
func truncatedMapping(t *testing.T, n int) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(n)))
	b, err := syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	for i := range b {
		b[i] = 7
	}
	require.NoError(t, f.Truncate(int64(n/2)))
	return b
}

// TestFaultComesBeforeTheAnswer checks that a put whose memory is gone ends before anything is sent
// in its place: a peer that got zeroes instead would report a success.
func TestFaultComesBeforeTheAnswer(t *testing.T) {
	const size = 64 << 10
	for name, write := range map[string]func(s *rawSession) []byte{
		"lent to the system": func(s *rawSession) (all []byte) {
			for faults := 0; ; {
				s.e.Lock()
				more := s.out.Fill()
				s.e.Unlock()
				if !more {
					return all
				}
				iov := s.out.Gather(nil)
				if len(all) == 0 && faults == 0 && s.out.Fault() {
					faults++ // as reported by a system call that could read none of it
					continue
				}
				n := 0
				for _, b := range iov {
					all = append(all, b...)
					n += len(b)
				}
				s.out.Wrote(n)
				return all // and the writer is delayed
			}
		},
		"copied": func(s *rawSession) []byte {
			b := make([]byte, 1<<20)
			s.e.Lock()
			defer s.e.Unlock()
			require.True(s, s.out.Fill())
			return b[:s.out.Copy(b)]
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawSession(t)
			require.NoError(t, s.feed(hello(), 1<<20))
			s.take(1 << 20)
			m, err := s.nctx.Class().NewMem(truncatedMapping(t, size))
			require.NoError(t, err)
			var ended []na.Result
			op := s.nctx.NewOp(func(_ *na.Op, r na.Result) { ended = append(ended, r) })
			require.NoError(t, s.nctx.Put(op, m, 0, na.MakeAddr(peerName, 0), na.Key{Len: size, Access: na.ReadWrite}, 0, size))
			hs, payloads := frames(t, write(s))
			require.Equal(t, frame.Put, hs[0].Kind)
			require.Equal(t, frame.Data, hs[1].Kind)
			require.Len(t, payloads[1], size)
			done := frame.Header{Kind: frame.Done, Op: hs[0].Op, Credit: 32}
			require.NoError(t, s.feed(done.Append(nil, nil), 1<<20))
			s.nctx.Trigger(0)
			require.Len(t, ended, 1)
			require.ErrorIs(t, ended[0].Err, na.ErrFault)
			s.take(1 << 20)
			s.nctx.Trigger(0)
			require.Len(t, ended, 1)
			s.close()
		})
	}
}
