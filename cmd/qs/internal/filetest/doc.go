// Package filetest provides helpers for tests that copy files.
package filetest
