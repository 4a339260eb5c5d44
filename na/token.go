package na

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// A tokenSource makes the tokens of the registered memory of a class. A token is a counter,
// encrypted under a random key, so that it cannot be guessed. The class recognizes its tokens
// without storing them, which distinguishes a late peer from one that guesses.
type tokenSource struct {
	key   sync.Once // makes block
	block cipher.Block
	made  atomic.Uint64
}

// next writes a new token.
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

// isOwn reports whether t has made the token.
func (t *tokenSource) isOwn(token [16]byte) bool {
	if t.made.Load() == 0 {
		return false
	}
	t.block.Decrypt(token[:], token[:])
	n := binary.LittleEndian.Uint64(token[:])
	return n-1 < t.made.Load() && binary.LittleEndian.Uint64(token[8:]) == 0
}

// isIssued reports whether the token belongs or belonged to memory that c has registered. It is
// called for a token that is not registered now.
func (c *Class) isIssued(token [16]byte) bool { return c.tokens.isOwn(token) }
