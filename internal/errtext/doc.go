// Package errtext builds the texts of errors that other packages of this module wrap.
//
//	hg.Error, bulk.Error, qs.Retry ──► Suffix(fate, After(took)) ──► "… (did not run, after 416µs)"
//
// The facts about an operation, such as its fate and its duration, always stand in parentheses at
// the end of a text, so that they cannot be taken for a part of the cause. A text has the name of
// one package, at its beginning: Cause and Wrap remove those of the errors inside. The package does
// not define errors of its own, and does not decide which facts a text contains.
package errtext
