package protocol

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
)

// An Auth specifies the enabled authentication mechanisms. At least one must be enabled.
type Auth struct {
	None   bool    // no authentication
	Key    *uint64 // number that is sent unencrypted, for the strict form
	Secret []byte  // shared secret that both sides prove they know, by HMAC-SHA-256; native form only
	// Bare makes a strict client send Key, or 0 if Key is nil, without negotiating a mechanism. Servers accept both.
	Bare bool
}

// Mechanism numbers. In a mask of mechanisms, bit n represents number n.
const (
	mechNone = iota
	mechKey
	mechSecret
)

// nonceLen is the length of a nonce in bytes.
const nonceLen = sha256.Size

// mechanisms returns the mask of enabled mechanisms.
func (a *Auth) mechanisms(f Form) (mask uint32) {
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

// validate returns an error if no mechanism is enabled.
func (a *Auth) validate(f Form) error {
	if a.mechanisms(f) == 0 {
		return errors.New("rendezvous: no authentication enabled, set Auth.None, Key or Secret")
	}
	return nil
}

// chooseMechanism returns the strongest enabled mechanism that is in the offered mask.
func (a *Auth) chooseMechanism(f Form, offered uint32) (mech int, ok bool) {
	for mech := mechSecret; mech >= mechNone; mech-- {
		if offered&a.mechanisms(f)>>mech&1 == 1 {
			return mech, true
		}
	}
	return 0, false
}

// responseLen returns the number of bytes that a client sends for a mechanism chosen by the server.
func responseLen(mech int) int {
	switch mech {
	case mechKey:
		return 8
	case mechSecret:
		return nonceLen + sha256.Size
	}
	return 0
}

// keyBytes returns the encoding of Key, or of 0 if Key is nil.
func (a *Auth) keyBytes() []byte {
	var key uint64
	if a.Key != nil {
		key = *a.Key
	}
	return binary.BigEndian.AppendUint64(nil, key)
}

// hasKey reports whether Key is enabled and b is its encoding.
func (a *Auth) hasKey(b []byte) bool {
	return a.Key != nil && subtle.ConstantTimeCompare(b, a.keyBytes()) == 1
}

// computeProof returns the proof that the side with the given role knows the secret. Including the role prevents a
// side from sending back the other side's proof.
func (a *Auth) computeProof(role string, server, client []byte) []byte {
	mac := hmac.New(sha256.New, a.Secret)
	mac.Write([]byte("quicksilver startup 1 " + role + "\n"))
	mac.Write(server)
	mac.Write(client)
	return mac.Sum(nil)
}
