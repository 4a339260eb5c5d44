//go:build !quicksilver_next

package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// laterFeatures holds feature bits in addition to those that buildGreeting sets.
const laterFeatures = 0

// beginLater sends the frames that only a later release sends at the start of a session. This
// release has none.
func (l *session) beginLater() {}

// creditOp returns the operation field of a CREDIT frame.
func (l *session) creditOp() uint64 { return 0 }

// checkCredit returns an error if a received CREDIT frame is invalid.
func (l *session) checkCredit(*frame.Header) error { return nil }

// deliverLater handles a frame of a kind unknown to Deliver.
func (l *session) deliverLater(h *frame.Header) error {
	return WithText(ErrProtocol, fmt.Sprintf("unexpected %v frame", h.Kind))
}
