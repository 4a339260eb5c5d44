// Package pieces implements the interfaces of package io in terms of functions that deliver and
// accept a stream in pieces.
//
// A Reader implements Read and WriteTo with a Next function that returns the next piece. A Writer
// implements Write and ReadFrom with the functions Room, which returns space to fill, and Add,
// which commits it.
//
// The user of the package supplies these functions. The package does not depend on where pieces
// come from or go to.
package pieces
