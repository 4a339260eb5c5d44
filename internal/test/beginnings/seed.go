package beginnings

import "testing"

// maxSeedLen is how many beginnings of one input are seeds.
const maxSeedLen = 256

// Seed adds b and its beginnings, without bytes after them that could be read by mistake, to the
// corpus of f. rest are the other arguments of the target.
func Seed(f *testing.F, b []byte, rest ...any) {
	f.Helper()
	for n := range min(len(b), maxSeedLen) {
		f.Add(append([]any{b[:n:n]}, rest...)...)
	}
	f.Add(append([]any{b}, rest...)...)
}
