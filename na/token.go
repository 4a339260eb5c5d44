package na

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// tokenSource are those of a class: the count of those made so far, encrypted under a random key.
// Nobody can guess one, and the class knows its own again after it has forgotten them, which tells
// a peer that is late from one that guesses.
type tokenSource struct {
	key   sync.Once // guards the drawing of block
	block cipher.Block
	made  atomic.Uint64
}

// next fills in a token that was never made before.
func (t *tokenSource) next(token *[16]byte, rand func([]byte)) {
	t.key.Do(func() {
		var key [16]byte
		rand(key[:])
		t.block, _ = aes.NewCipher(key[:]) // an error is about the length of the key
	})
	*token = [16]byte{}
	binary.LittleEndian.PutUint64(token[:], t.made.Add(1))
	t.block.Encrypt(token[:], token[:])
}

// isOwn reports whether it has made the token.
func (t *tokenSource) isOwn(token [16]byte) bool {
	if t.made.Load() == 0 {
		return false
	}
	t.block.Decrypt(token[:], token[:])
	n := binary.LittleEndian.Uint64(token[:])
	return n-1 < t.made.Load() && binary.LittleEndian.Uint64(token[8:]) == 0
}

// isIssued reports whether a token is or was that of memory which c has registered. Plugins ask
// when a peer names one that is not registered now: it may be late, or it guesses.
func (c *Class) isIssued(token [16]byte) bool { return c.tokens.isOwn(token) }
