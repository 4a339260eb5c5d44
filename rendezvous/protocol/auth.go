package protocol

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
)

// An Auth says by which mechanisms a client and a server may agree on who they are. At least one must be enabled.
type Auth struct {
	None   bool    // nobody is asked for anything
	Key    *uint64 // a number that crosses the network as it is, for the strict form
	Secret []byte  // both sides prove by HMAC-SHA-256 that they know it; native form only
	// Bare makes a strict client send Key, or 0, without asking which mechanism the server wants. Servers understand both.
	Bare bool
}

// Mechanisms by number. A mask of mechanisms has bit n for number n.
const (
	mechNone = iota
	mechKey
	mechSecret
)

// nonceLen is the length of a random number in the exchange of proofs.
const nonceLen = sha256.Size

func (a *Auth) mask(f Form) (mask uint32) {
	if a.None {
		mask |= 1 << mechNone
	}
	if a.Key != nil {
		mask |= 1 << mechKey
	}
	if len(a.Secret) > 0 && f == Native {
		mask |= 1 << mechSecret
	}
	return mask
}

func (a *Auth) check(f Form) error {
	if a.mask(f) == 0 {
		return errors.New("rendezvous: no mechanism of authentication is enabled")
	}
	return nil
}

// pick returns the strongest mechanism that both sides have enabled.
func (a *Auth) pick(f Form, offered uint32) (mech int, ok bool) {
	for mech := mechSecret; mech >= mechNone; mech-- {
		if offered&a.mask(f)>>mech&1 == 1 {
			return mech, true
		}
	}
	return 0, false
}

// answerLen is how many bytes a client sends after the server has named a mechanism.
func answerLen(mech int) int {
	switch mech {
	case mechKey:
		return 8
	case mechSecret:
		return nonceLen + sha256.Size
	}
	return 0
}

func (a *Auth) keyBytes() []byte {
	var key uint64
	if a.Key != nil {
		key = *a.Key
	}
	return binary.BigEndian.AppendUint64(nil, key)
}

func (a *Auth) keyIs(b []byte) bool {
	return a.Key != nil && subtle.ConstantTimeCompare(b, a.keyBytes()) == 1
}

// prove returns the proof that a side knows the secret; role keeps one side from sending the other's proof back.
func (a *Auth) prove(role string, server, client []byte) []byte {
	mac := hmac.New(sha256.New, a.Secret)
	mac.Write([]byte("quicksilver startup 1 " + role + "\n"))
	mac.Write(server)
	mac.Write(client)
	return mac.Sum(nil)
}
