// Package codes defines the codes and fates of completed operations. Package na redefines all of
// them as Code and Fate constants.
//
// Package codes imports only the standard library. It is meant for packages that need the codes but
// not the network. Packages that import na should use its names.
package codes
