// Package pieces implements the interfaces of package io over functions that deliver and accept a
// stream in pieces.
//
//	Reader: Read, WriteTo ◄─ the rest of a piece ◄─ Next ◄─ source of pieces
//	Writer: Write, ReadFrom ─► Room, Add ─► destination of full pieces
//
// The functions are set by the user of the package; it does not depend on where pieces come from
// and go to.
package pieces
