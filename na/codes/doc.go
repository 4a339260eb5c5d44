// Package codes has the codes and the fates with which operations end: what package na calls Code and Fate.
//
// It imports the standard library only, so that a package which needs the words and not the network can have them. Package na
// repeats every name; use that one where you import na anyway.
package codes
