//go:build !quicksilver_next

package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// laterFeatures are the feature bits in addition to those that buildGreeting sets.
const laterFeatures = 0

// beginLater sends frames that only a later release sends at the beginning of a session: none.
func (l *session) beginLater() {}

// creditOp returns the operation field of a CREDIT.
func (l *session) creditOp() uint64 { return 0 }

// checkCredit returns an error if a received CREDIT is not valid.
func (l *session) checkCredit(*frame.Header) error { return nil }

// deliverLater handles a frame of a kind that Deliver does not know.
func (l *session) deliverLater(h *frame.Header) error {
	return WithText(ErrProtocol, fmt.Sprintf("unexpected %v frame", h.Kind))
}
