package mutant

import "slices"

// The environment variables of a program that is built with the overlay.
const (
	Env      = "QUICKSILVER_MUTANT"       // the name of the mutant that is on
	EnvBlind = "QUICKSILVER_MUTANT_BLIND" // if set, the tables of internal/fsmcheck are not checked
)

// A Mutant is a bug that a system of this kind has had, or a violation of a guarantee of this one.
type Mutant struct {
	Name string
	Bug  string
	From string // H1 to H17: hazards that Mercury has or had. F1 to F86: rows of the fault matrix. I1 to I18: invariants.

	Edits    []Edit
	Catchers []Catcher // without any, a seed of the simulator has to catch it
}

// An Edit replaces a piece of a file.
type Edit struct {
	File   string // from the root of the module
	Anchor string // occurs in the file exactly once
	With   string // where $ is the anchor, and planted() reports whether the mutant is on
}

// A Catcher is a test that must fail when the mutant is on, and because of it: Says is a regular
// expression that its output matches, with one blank for all white space. The tables of
// internal/fsmcheck are not checked then: they would catch many mutants before the test could.
type Catcher struct{ Pkg, Test, Says string }

func (c Catcher) String() string { return c.Pkg + " " + c.Test }

// All returns every mutant, in order.
func All() []Mutant {
	return slices.Concat(hazardMutants, callMutants, memoryMutants, sessionMutants, packetMutants, ringMutants, streamMutants, outcomeMutants, pageMutants, schemaMutants)
}

// Named returns the mutant with this name, or nil.
func Named(name string) *Mutant {
	all := All()
	if i := slices.IndexFunc(all, func(m Mutant) bool { return m.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// harnessEdits are the changes of the overlay to the helpers of tests.
var harnessEdits = []Edit{
	{"internal/test/leak/leak.go", `fsmcheck.Check()`, `if !planted.Blind() { $ }`},
	{"internal/test/transports/transports.go", `patience = time.Minute`, `patience = 10 * time.Second`},
	{ledger + "/seeds_test.go", `most := uint64(5)`, `most := uint64(1)`},        // one seed is enough,
	{ledger + "/seeds_test.go", `failures == 1 && s.failed != nil {`, `false {`}, // as large as it is
}

// ledger is where the simulator's seeds are run.
const ledger = "plugins/sim/ledger"
