// Package natest is a conformance suite for package na. It applies the same rules to every plugin,
// with one call per plugin.
//
//	func TestConformance(t *testing.T) {
//		natest.TestPlugin(t, func(testing.TB) natest.Network {
//			return natest.Network{
//				Listen: func(int) string { return "my://127.0.0.1:0" }, Origin: "my://", Nobody: "my://127.0.0.1:1",
//				Plugins: []carrier.Plugin{New()}, Concurrent: true, Assisted: true,
//			}
//		}, map[string]string{"Storm": "why this plugin cannot keep the rule"})
//	}
//
// Plugins in other modules run the suite in their own tests, with go test. A plugin that fulfills
// the requirements of package na/carrier passes it. Check runs a single rule. If a rule fails, it
// says why a user cares.
//
// A rule is a row with a name, a reason why a user cares, and a check. It runs on a bed, which
// consists of the classes that it has opened and a ledger of every operation that it has started.
//
//	rule ─► side.send, recv, put, get … ─► call (one line of the ledger) ─► na.Context
//	  └───► call.ok, call.fails ─► bed drives every context in turn: Progress, Trigger ─► callback ─► the ledger
//
// The following always holds, whatever the rule checks. The callback of an accepted operation has
// run exactly once, inside Trigger, and that of a refused operation never. Memory was not touched
// after the callback. At the end, every gauge is zero again, and no goroutines or descriptors are
// left. One goroutine drives all contexts, so that a plugin with virtual time can be tested. Rules
// that need several goroutines run only if Network.Concurrent is set. A plugin with several
// networks, assisted and not, calls Cover, so that each rule is checked on one of them.
//
// The suite does not cover faults of the network itself, processes that die, or speed.
package natest
