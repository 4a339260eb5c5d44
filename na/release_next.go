//go:build quicksilver_next

package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

const laterFeatures = frame.FeatureNext

// beginLater sends one frame of each kind that a later release adds, and one CREDIT frame with
// FlagNext, if the peer supports them.
func (l *session) beginLater() {
	if l.peer.features&frame.FeatureNext == 0 {
		return
	}
	for _, h := range []frame.Header{
		{Kind: frame.Note, Flags: frame.FlagNext, Op: 1}, {Kind: frame.Ask, Op: 2}, {Kind: frame.Credit, Flags: frame.FlagNext, Op: l.creditOp()},
	} {
		l.queueControl(h)
	}
}

func (l *session) creditOp() uint64 {
	if l.peer.version >= 8 {
		return 8
	}
	return 0
}

func (l *session) checkCredit(h *frame.Header) error {
	if h.Op != l.creditOp() || h.Flags&frame.FlagNext != 0 && l.peer.features&frame.FeatureNext == 0 {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame with operation %d and flags %#x in version %d", h.Kind, h.Op, h.Flags, l.peer.version))
	}
	if frame.Seen.Credits.Add(1); h.Flags&frame.FlagNext != 0 {
		frame.Seen.Flags.Add(1)
	}
	return nil
}

func (l *session) deliverLater(h *frame.Header) error {
	switch {
	case l.peer.features&frame.FeatureNext == 0:
	case h.Kind == frame.Note:
		frame.Seen.Notes.Add(1)
		return nil
	case h.Kind == frame.Ask:
		frame.Seen.Asks.Add(1)
		return nil
	}
	return WithText(ErrProtocol, fmt.Sprintf("unexpected %v frame", h.Kind))
}
