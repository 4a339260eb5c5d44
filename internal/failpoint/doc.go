// Package failpoint is where tests plant panics: in the code that handles what a peer has sent. Outside of
// tests it does nothing.
package failpoint
