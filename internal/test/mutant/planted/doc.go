// Package planted reports which mutant is on, and has what some of them need. Only the files of an
// overlay import it.
package planted
