// Package filetest has what tests of copies make and look at.
package filetest
