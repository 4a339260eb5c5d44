// Package all links every plugin into a program: import it for its side effect, and addresses of every transport work.
//
//	import _ "github.com/quicksilver-rpc/quicksilver/plugins/all"
//
// A program that wants fewer imports those plugins alone. The simulator is not among them: it is given in
// na.Config.Plugins, because its network belongs to one test.
package all
