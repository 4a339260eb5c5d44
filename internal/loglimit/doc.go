// Package loglimit limits the rate at which peers can cause lines to be logged.
package loglimit
