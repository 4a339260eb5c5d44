package na

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// A tokenSource creates the tokens for a class's registered memory. A token is a counter encrypted
// under a random key, so that it cannot be guessed. The class recognizes its tokens without storing
// them, which lets it distinguish a late peer from one that is guessing.
type tokenSource struct {
	key   sync.Once // guards creation of block
	block cipher.Block
	made  atomic.Uint64
}

// next generates a token and stores it in *token. rand fills a slice with random bytes.
func (t *tokenSource) next(token *[16]byte, rand func([]byte)) {
	t.key.Do(func() {
		var key [16]byte
		rand(key[:])
		t.block, _ = aes.NewCipher(key[:]) // the only error is an invalid key length
	})
	*token = [16]byte{}
	binary.LittleEndian.PutUint64(token[:], t.made.Add(1))
	t.block.Encrypt(token[:], token[:])
}

// isOwn reports whether t has generated token.
func (t *tokenSource) isOwn(token [16]byte) bool {
	if t.made.Load() == 0 {
		return false
	}
	t.block.Decrypt(token[:], token[:])
	n := binary.LittleEndian.Uint64(token[:])
	return n-1 < t.made.Load() && binary.LittleEndian.Uint64(token[8:]) == 0
}

// isIssued reports whether token was generated for memory of c, including memory that has been
// deregistered.
func (c *Class) isIssued(token [16]byte) bool { return c.tokens.isOwn(token) }
