//go:build quicksilver_next

package bulk

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

const ownFields = 1

func appendFields(b []byte) []byte { return append(b, "nextnext"...) }

func takeFields(b []byte) {
	if string(b) == "nextnext" {
		frame.Seen.Handles.Add(1)
	}
}
