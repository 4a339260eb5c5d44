//go:build !quicksilver_next

package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// laterFeatures is the set of feature bits that this release announces in a HELLO in addition to
// those that every release announces. It is empty.
const laterFeatures = 0

// beginLater does nothing. In a build with the quicksilver_next tag, it sends the frames that a
// later release adds at the start of a session.
func (l *session) beginLater() {}

// creditOp returns the value of the operation field in CREDIT frames, which this release does not
// use.
func (l *session) creditOp() uint64 { return 0 }

// checkCredit accepts every CREDIT frame. Later releases validate additional fields.
func (l *session) checkCredit(*frame.Header) error { return nil }

// deliverLater returns an ErrProtocol error for h, whose kind this release does not support.
func (l *session) deliverLater(h *frame.Header) error {
	return WithText(ErrProtocol, fmt.Sprintf("unexpected %v frame", h.Kind))
}
