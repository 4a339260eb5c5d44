// Package all links every plugin into a program: import it for its side effect, and addresses of every transport work.
//
//	import _ "github.com/quicksilver-rpc/quicksilver/plugins/all"
//
// To link fewer, import single plugins. The simulator is not among them: pass its world's plugin in na.Config.Plugins, because
// that network belongs to one test.
package all
