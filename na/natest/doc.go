// Package natest is the conformance suite of package na: the same rules for every plugin, one call
// per plugin.
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
// A plugin of another module runs it in its own tests, with go test: what package na/carrier requires
// of a plugin is sufficient. Check runs a single rule, and a rule that fails says why
// a user cares.
//
// A rule is a row: its name, why a user cares, and a check. It runs on a bed: the classes that it
// opened, and a ledger of every operation that it started.
//
//	rule ─► side.send, recv, put, get … ─► call (one line of the ledger) ─► na.Context
//	  └───► call.ok, call.fails ─► bed drives every context in turn: Progress, Trigger ─► callback ─► the ledger
//
// What always holds, whatever the rule checks: an accepted operation's callback ran exactly once,
// inside Trigger; a refused one's never; memory was not touched after the callback; every gauge is
// back at zero at the end; no goroutine and no descriptor is left. One goroutine drives all
// contexts, so that a plugin with virtual time can be tested; rules that need several goroutines
// run only if Network.Concurrent is set. A plugin with several networks, assisted and not,
// calls Cover, so that each rule is checked on one of them.
//
// Not here: faults of the network itself, processes that die, speed.
package natest
