// Package protect implements packet protection of RFC 9001: keys from the secrets of TLS 1.3 (5.1),
// Initial keys (5.2), the AEAD and its nonce (5.3), header protection (5.4), key update (6); and
// packet numbers as in RFC 9000 (17.1, A.3). It does not depend on the contents of packets: a
// packet is a header that ends with a number of 4 bytes, a payload and a tag.
//
//	flags ... | number 4 | payload            | tag 16
//	└── associated data ─┘ └── sealed in place ───────┘
package protect
