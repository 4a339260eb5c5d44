//go:build !quicksilver_next

package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// laterFeatures is the bits of features beside those that greeting sets.
const laterFeatures = 0

// beginLater sends what only a later release sends when a session begins.
func (l *session) beginLater() {}

// creditOp is the operation of a CREDIT, and checkCredit reports why one that has come cannot be.
func (l *session) creditOp() uint64                { return 0 }
func (l *session) checkCredit(*frame.Header) error { return nil }

// deliverLater takes in a frame of a kind that Deliver does not know.
func (l *session) deliverLater(h *frame.Header) error {
	return WithText(ErrProtocol, fmt.Sprintf("%v frame inside a session", h.Kind))
}
