// Package pieces reads and writes streams that move piece by piece, for package io.
//
//	Reader: Read, WriteTo ◄─ the rest of a piece ◄─ Next ◄─ what brings pieces
//	Writer: Write, ReadFrom ─► Room, Add ─► what takes pieces away when they are full
//
// It knows nothing of where pieces come from and go to.
package pieces
