//go:build !unix

package files

const nonBlock = 0
