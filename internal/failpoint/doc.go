// Package failpoint lets tests inject panics into the code that handles bytes and frames received
// from a peer. Outside of tests it does nothing.
package failpoint
