// Package codes defines the codes and fates with which operations end; package na repeats all of
// them as Code and Fate.
//
// It imports only the standard library, for packages that need the codes but not the network. Use
// the names of package na if you import that anyway.
package codes
