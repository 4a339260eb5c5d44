// Package loglimit bounds how often peers can have a line written to the log.
package loglimit
