// Package pieces implements the interfaces of package io in terms of functions that deliver and
// accept a stream in pieces.
//
//	Reader: Read, WriteTo ◄─ the rest of a piece ◄─ Next ◄─ source of pieces
//	Writer: Write, ReadFrom ─► Room, Add ─► destination of full pieces
//
// The user of the package supplies these functions. The package does not depend on where pieces
// come from or go to.
package pieces
