// Package golden provides traces of messages between two C processes, for tests. All but "null" are recordings.
package golden

import (
	"bufio"
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

//go:embed *.txt
var files embed.FS

// Names lists the names of the traces:
//
//   - "first": a call without arguments; "more": a call with arguments that do not fit into a message
//   - "read": a transfer to lent memory; "eager": a transfer from memory whose data is in the handle
//   - "overflow": output that does not fit into a message, and its acknowledgement; "overflowsums": with checksums
//   - "noentry": a call of an RPC that the target does not have; "noentrysums": with checksums
//   - "null": a NULL hg_string_t in the input, before a uint32_t and bytes, and one in the output, after a string
var Names = []string{"first", "more", "read", "eager", "overflow", "overflowsums", "noentry", "noentrysums", "null"}

// A Message is one message of a trace.
type Message struct {
	FromOrigin bool
	Bytes      []byte
	Cut        int // number of payload bytes after Bytes that were omitted
}

// Read returns the messages of the named trace.
func Read(name string) ([]Message, error) {
	f, err := files.Open(name + ".txt")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Message
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.Fields(lines.Text())
		if len(line) < 2 || line[0] == "#" {
			continue
		}
		m := Message{FromOrigin: line[0] == ">"}
		if m.Bytes, err = hex.DecodeString(line[1]); err == nil && len(line) > 2 {
			m.Cut, err = strconv.Atoi(line[2])
		}
		if err != nil {
			return nil, fmt.Errorf("golden: %s: %w", name, err)
		}
		all = append(all, m)
	}
	return all, nil
}
