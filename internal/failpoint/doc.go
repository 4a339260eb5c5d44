// Package failpoint lets tests plant panics in the code that handles bytes and frames of a peer.
// Outside of tests it does nothing.
package failpoint
