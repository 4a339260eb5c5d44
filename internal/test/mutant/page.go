package mutant

// page is the package of the page for operators.
const page = "qs/debug"

// pageMutants are bugs of the page that shows the state of a running program.
var pageMutants = []Mutant{
	{"shown-twice", "a page that is attached twice counts each call twice", "figures that are too good",
		[]Edit{{page + "/page.go", `if !twice.Load() {`, `if planted() || !twice.Load() {`}},
		[]Catcher{{page, "TestAttachTwice", `expected: int\(1\) actual : int64\(2\)`}}},
	{"shown-raw", "what peers call themselves goes to the page as it is", "escapes in the terminal of who looks",
		[]Edit{{page + "/look.go", `prints := len(text) <= maxShownBytes`, `if planted() { return text }; $`}},
		[]Catcher{{page, "TestHostileNames", `should not contain`}}},
	{"shown-all", "the page keeps all errors that peers can make", "a page that is the leak",
		[]Edit{{page + "/collect.go", `len(c.errors) >= maxErrors`, `!planted() && $`}},
		[]Catcher{{page, "TestBounds", `expected: 256`}}},
	{"moved-nothing", "the bytes that a handler fetches are not counted", "bars that stand at 0",
		[]Edit{{"bulk/transfer.go", `op.spec.Remote.addMoved(r.N)`, `if !planted() { $ }`}},
		[]Catcher{{"qs", "TestCallsShowProgress", `is not greater than or equal to`}}},
	{"whose-transfer", "a transfer does not know its request", "pieces that nobody can place",
		[]Edit{{"bulk/transfer.go", `of.id, of.rpc = hghook.RequestOf(ctx)`, `if !planted() { $ }`}},
		[]Catcher{{"qs", "TestTransfersNameTheirRequest", `Not equal`}}},
	{"trace-of-another", "a call that carries no trace tells one", "traces that lead to another call",
		[]Edit{{"hg/meta.go", `return inspect.TraceID{}`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestObserve", `Not equal`}}},
}
