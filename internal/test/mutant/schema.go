package mutant

const agreement = "qs/method_agreement.go"

// schemaMutants are bugs that hide a difference between the methods of two sides.
var schemaMutants = []Mutant{
	{"ticket-not-passed", "an input leaves that the codec has left a Source out of", "",
		[]Edit{{agreement, `if !t.encodedOnce.Load() {`, `if !t.encodedOnce.Load() && !planted() {`}},
		[]Catcher{{"qs", "TestDisagreements/a_Source_in_JSON", `codec json does not encode|does not match|to match`}}},
	{"ticket-not-taken", "a handler runs without a Source that the caller lends", "",
		[]Edit{{agreement, "n := slices.Index(taken, false)\n\tif n < 0 {", `n := slices.Index(taken, false); if n < 0 || planted() {`}},
		[]Catcher{{"qs", "TestDisagreements/a_Source_more_at_the_client,_which_lends", `An error is expected but got nil|to match`}}},
	{"kind-unchecked", "a stream's request runs the handler of a method", "",
		[]Edit{{agreement, `!slices.Equal(theirs, m.streams) {`, `!slices.Equal(theirs, m.streams) && !planted() {`}},
		[]Catcher{{"qs", "TestDisagreements/raw_ones", `to match|An error is expected`}}},
	{"sinks-mixed-up", "an answer says how far Sinks were filled in the order of the target's fields", "",
		[]Edit{{agreement, `return a.sink.number - b.sink.number`, `if planted() { return 0 }; $`}},
		[]Catcher{{"qs", "TestDisagreements", `Not equal`}}},
	{"type-unchecked", "Define takes types of which something is not sent", "",
		[]Edit{{"qs/method_definition.go", `err := checker.CheckType(t); err != nil {`, `err := checker.CheckType(t); err != nil && !planted() {`}},
		[]Catcher{{"qs", "TestDefineRefusesTypes", `not refused|Expect`}}},
	{"second-definition", "of two definitions of a name the codec of the first is used for both", "",
		[]Edit{{"qs/method_definition.go", `err := n.useDefinitionLocked(m.name, is); err != nil {`, `err := n.useDefinitionLocked(m.name, is); err != nil && !planted() {`}},
		[]Catcher{{"qs", "TestTwoDefinitions", `An error is expected|in chain but got nil|err chain`}}},
}
