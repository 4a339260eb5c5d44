// Package protect implements the packet protection of RFC 9001: deriving keys from TLS 1.3 secrets
// (Section 5.1), Initial keys (5.2), the AEAD and its nonce (5.3), header protection (5.4), and key
// updates (6). Packet numbers follow RFC 9000 (Sections 17.1 and A.3). The package does not depend
// on the contents of packets. A packet consists of a header that ends with a 4-byte packet number,
// a payload, and a tag.
//
//	flags ... | number 4 | payload            | tag 16
//	└── associated data ─┘ └── sealed in place ───────┘
package protect
