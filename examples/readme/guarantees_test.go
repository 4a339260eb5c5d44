package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A guarantee is a promise with a name and the tests that show that it is kept. The README links to it, and docs/GUARANTEES.md is
// written from these.
type guarantee struct {
	id, promise string
	tests       []string // "package: Test", or a rule of the conformance suite, which runs over every plugin
}

// guarantees are in the order of the page. One with a colon and no tests begins a section.
var guarantees = []guarantee{
	{id: ":Calls"},
	{"once", "Every accepted operation ends exactly once: success, canceled or an error. One that is refused runs no callback.", []string{"na/natest: CancelEverywhere", "na/natest: CloseEverywhere", "hg: TestH1CancelRacesForward", "plugins/sim/ledger: TestSeeds"}},
	{"trigger", "Callbacks run only inside Trigger, with no lock held, and may call anything: cancel, forward, close.", []string{"na/natest: CancelInCallback", "na/natest: CloseInCallback", "hg: TestCancelInsideCallbacks", "hg: TestCloseInsideCallback"}},
	{"silence", "Every call gets an answer: also when the RPC is unknown, the input cannot be decoded, or the handler fails, panics or forgets to answer.", []string{"hg: TestEverySilenceIsAnswered", "hg: TestRefusedRequests", ".: TestPanicAndSilence"}},
	{"fate", "Every error says whether the request did not run, ran, or may have run. Codes of a remote error never look like what happened here.", []string{"hg: TestFateFollowsTheSend", "hg: TestFateOfSuccess", "hg: TestCodesOfHandlers", "hg: TestErrorSaysItAll"}},
	{"typed", "A typed call takes a function and its types; a server is one line more.", []string{".: TestCall", "examples/greet: TestGreet", "examples/greet: TestShown"}},
	{"misuse", "A request that has ended can be answered late, twice or by the wrong goroutine: the answer is refused, and reaches nobody else's call.", []string{"hg: TestMisuseAtRandom", "hg: TestKeptUntilAnother", "hg: TestAnsweredTwice", "hg: TestIncomingIsNotClosed"}},
	{"deadline", "A deadline travels with its call: what is too late is neither sent nor run, and the handler's context ends with it.", []string{".: TestDeadlineTravels", "hg: TestTimeoutWithoutEnvelope", "hg: TestExpiredInTheQueue", "hg: TestExpiredBehindMaxActive", "hg: TestDeadlineEndsContext"}},
	{"abandon", "The context of a handler ends when its origin abandons the call or is gone, and so may the calls that it makes.", []string{"hg: TestAbandonEndsHandlers", "hg: TestAbandonGoesOn", "hg: TestPeerLossEndsHandlers"}},
	{"withdraw", "A request can be taken back from its target, with proof that its handler did not and will not run.", []string{"hg: TestWithdrawBuffered", "hg: TestWithdrawTooLate", "hg: TestWithdrawRacesDispatch", "na/natest: WithdrawHeld", "examples/hedge: TestHedge"}},
	{"bodies", "Input and output larger than a message travel unnoticed, within limits, and leave nothing behind when the origin cancels.", []string{"hg: TestBodiesInline", "hg: TestMercuryRPC/InputOverflow", "hg: TestMercuryRPC/OutputOverflow", "hg: TestH15OversizeResponsesToCanceledOrigin"}},
	{"authorize", "A request is denied, and its handler does not run, unless the authorizer returns nil.", []string{"hg: TestAuthorizerDenies"}},
	{"active", "Handlers at work are bounded, for all and for each peer; a cancel at the origin frees no place.", []string{"hg: TestMaxActive", "hg: TestMaxActivePerPeer", "hg: TestRapidReset"}},
	{"shutdown", "Shutdown refuses new calls, lets those under way end within a bound, and reports what was left.", []string{"hg: TestShutdownDrains", "hg: TestShutdownLingers", "hg: TestH17", "bulk: TestShutdownLetsTransfersEnd", "examples/blob: TestSIGTERM"}},
	{"waits", "A wait with a context cancels when the context ends, and returns only after the callback has run.", []string{"request: TestWaitContext", "request: TestWaitTimesOutExactly", "request: ExampleRequest_WaitContext"}},
	{"allocations", "A raw call allocates nothing in the steady state, a bulk transfer itself only, a typed call eight times at most.", []string{"hg: TestRawCallsAllocateNothing", "bulk: TestTransfersAllocateLittle", ".: TestAllocations"}},

	{id: ":Cancel"},
	{"cancel", "Cancel is local: Trigger right after it runs the canceled callback, whether the peer is alive, frozen or gone.", []string{"na/natest: CancelNow", "na/natest: FrozenPeer", "hg: TestCancelThenTriggerWithoutProgress", "internal/proctest: TestStoppedTarget"}},
	{"cancel-all", "It reaches calls, responses, lookups, calls of a process to itself, large bodies, and every piece of a bulk transfer.", []string{"hg: TestCancelRespond", "hg: TestLookupCancel", "hg: TestCancelOversizeOutput", "na/natest: CancelSelf", "plugins/tcp: TestCancelPut", "examples/demo: TestDemo"}},
	{"buffers", "After the canceled callback nobody reads or writes your memory, and the connection goes on.", []string{"na/natest: CanceledGetUntouched", "na/natest: CanceledPutUnread", "na/natest: CanceledReceiveUntouched", "plugins/tcp: TestCancelGet", ".: TestLentMemory"}},
	{"reuse", "The handle may be forwarded again; a late answer is dropped and counted.", []string{"na/natest: ReuseAfterCancel", "na/natest: DropLate", "hg: TestH5LateAnswerAfterReuse", "examples/cancel: TestCancel"}},
	{"success-wins", "Success wins over a cancel that comes after the response.", []string{"hg: TestCancelAfterArrival"}},

	{id: ":Flow control"},
	{"envelopes", "Each peer is guaranteed room for a number of requests; the rest waits at the source, within a limit, or fails there if you say so, and nothing deadlocks.", []string{"na/natest: Envelopes", "na/natest: SendQueueFull", "na/natest: NoCreditFails", "na/natest: HeadToHead", "hg: TestCallWaitsForEnvelope"}},
	{"reserved", "The guarantee is reserved memory, to the byte: Open fails if it cannot be met, and a peer too many gets an error with both figures.", []string{"internal/proctest: TestGERExample", "na/natest: GuaranteedToTheByte", "na/natest: NeedAndWant", "na: TestContract"}},
	{"slow", "A slow target does not slow the others, and a program tells how many envelopes it really needs.", []string{"hg: TestSlowTargetAmongTen", "internal/proctest: TestSlowTargetAmongTen", "na/natest: HighWater", "cmd/qs: TestGerAsks"}},
	{"bulk-aside", "A message does not wait behind bulk data to the same peer (tcp on Linux).", []string{"plugins/tcp: TestMessagesPassBulk", "plugins/tcp: TestBulkOfListener"}},

	{id: ":Bulk data"},
	{"bulk", "A bulk transfer is exact for all segments, offsets and sizes, in both directions, also from a third party.", []string{"bulk: TestMercuryBulk", "na/natest: MoveSegments", "examples/bulk: TestBulk"}},
	{"keys", "Once the Close of a bulk handle has completed no peer can touch the memory. Keys cannot be guessed and are checked on every access.", []string{"na/natest: MoveAfterDeregister", "na/natest: MoveWrongKey", "na/natest: MovePermission", "na/natest: MoveBounds", "plugins/tcp: TestDeregisterWhileRead"}},
	{"one-sided", "One side may sleep: memory is served although its owner drives nothing.", []string{"plugins/tcp: TestOneSided"}},
	{"streams", "Memory of a peer is an io.ReaderAt, io.Reader or io.Writer; a mapped file that is cut short is an error, not a crash.", []string{"bulk: TestReader", "bulk: TestWriter", "bulk: TestFileTruncated", "bulk: ExampleNewReader"}},
	{"lent", "Once a typed call has returned, whatever its error, nobody touches the memory or the file that it lent.", []string{".: TestLentMemory", ".: TestLateUse", ".: TestSources", ".: TestSinks"}},
	{"blob", "A file store with fail-over loses no transfer when one server is killed and one is stopped, on real sockets and under a thousand seeds.", []string{"examples/blob: TestFailOver", "examples/blob: TestSimulated"}},

	{id: ":Peers and transports"},
	{"restart", "A request that a server has not taken when it ends in order did not run, and says so: it is repeated at the next one.", []string{".: TestOrderlyRestart", ".: TestOrderlyRestartSim", "plugins/internal/engine: TestGoawayCounts"}},
	{"peers", "A peer that dies is noticed, with a fault callback; one that restarts at the same address is a new peer.", []string{"internal/proctest: TestKilledTarget", "hg: TestPeerLost", "plugins/tcp: TestRestart", "na/natest: BoundAddress"}},
	{"transports", "Every plugin keeps the same rules; hg and bulk are tested over each.", []string{"plugins/tcp: TestConformance", "plugins/udp: TestConformance", "plugins/sm: TestConformance", "plugins/sim: TestConformance"}},
	{"udp", "Messages over udp arrive once and in order whatever the network loses, repeats or reorders.", []string{"plugins/udp/internal/arq: TestUT1ExactlyOnceInOrder", "plugins/udp/internal/arq: TestHandshakeFaults", "plugins/udp/internal/arq: TestReplay"}},
	{"amplification", "A udp listener sends a stranger no more bytes than he has sent.", []string{"plugins/udp/internal/arq: TestUT32Amplification"}},
	{"hostile", "Bytes from a peer are hostile until checked.", []string{"hg/codec: TestMsgpackHostile", "hg/codec: FuzzDecode", "plugins/tcp: TestBadHello", "plugins/tcp: TestBadSession", "plugins/udp/internal/arq: FuzzMachine"}},
	{"start", "Processes that start together find each other, or an error names who is missing; afterwards nobody needs the server.", []string{"rendezvous: TestStartup", "rendezvous: TestMissingMember", "rendezvous: TestHostileClients", "cmd/qs: TestRun", "examples/allgather: TestServerGone", "examples/allgather: TestKilled"}},
	{"replay", "One seed, one run: the simulator replays.", []string{"plugins/sim/ledger: TestReplay", "plugins/sim: TestCoroutines"}},

	{id: ":TLS (tcp)"},
	{"tls", "TLS 1.3 and the protocol `quicksilver/1`, or no session, whatever the configuration says.", []string{"plugins/tcp: TestTLSDowngrade"}},
	{"tls-refused", "A peer without a valid certificate, if one is asked for, gets no further than the handshake; so does a plain one. The error says what to do.", []string{"plugins/tcp: TestTLSRefused"}},
	{"tls-identity", "Each message comes with what its sender has proven: `Context.Identity`.", []string{"plugins/tcp: TestTLSIdentity"}},
	{"tls-bulk", "The connection for bulk data is of the same peer as its session.", []string{"plugins/tcp: TestTLSBulkOfAnother", "plugins/tcp: TestTLSBulkToAnother"}},
	{"tls-name", "A peer whose certificate is not valid for the address that was dialed is refused.", []string{"plugins/tcp: TestTLSNameOfAnother"}},
	{"tls-replay", "A recorded session that is played again opens nothing.", []string{"plugins/tcp: TestTLSReplay"}},
	{"tls-broken", "Truncation, damage and garbage end that connection, and no other.", []string{"plugins/tcp: TestTLSBroken"}},
	{"tls-strangers", "Unauthenticated peers are limited to 64 KiB (128 KiB with an accepted certificate), five seconds and 256 connections.", []string{"plugins/tcp: TestTLSHalfOpen", "plugins/tcp: TestTLSTooMuch"}},
}

// page writes docs/GUARANTEES.md.
func page() string {
	var b strings.Builder
	b.WriteString(`# Guarantees

What Quicksilver promises, and the tests that show it. This page is written by ` + "`go test ./examples/readme -update`" + ` from
` + "`examples/readme/guarantees_test.go`" + `; a test fails when a promise has no test, or names one that does not exist. What is named with
` + "`na/natest`" + ` is a rule of the conformance suite, which runs over every plugin. ` + "`.`" + ` is the root package.
`)
	for _, g := range guarantees {
		if title, ok := strings.CutPrefix(g.id, ":"); ok {
			fmt.Fprintf(&b, "\n## %s\n\n| promise | shown by |\n|---|---|\n", title)
			continue
		}
		fmt.Fprintf(&b, "| <a id=\"%s\"></a>%s | `%s` |\n", g.id, g.promise, strings.Join(g.tests, "`, `"))
	}
	return b.String()
}

var update = flag.Bool("update", false, "write docs/GUARANTEES.md anew")

func TestGuarantees(t *testing.T) {
	file := filepath.Join(root, "docs/GUARANTEES.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page()), 0o666))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, page(), string(b), "go test ./examples/readme -update writes it anew")
	for _, g := range guarantees {
		assert.Equal(t, strings.HasPrefix(g.id, ":"), len(g.tests) == 0, "%q: a promise without a test", g.id)
	}
}

var (
	linked = regexp.MustCompile(`docs/GUARANTEES\.md#([a-z-]+)\)`)
	bullet = regexp.MustCompile(`(?m)^- (.*(?:\n  .*)*)`)
)

var transport = regexp.MustCompile("(?m)^\\| `\\w+://.*$")

// TestReadmePromises: each bullet and each transport of what the library does links to a guarantee that is there.
func TestReadmePromises(t *testing.T) {
	_, rest, ok := strings.Cut(readme(t), "\n## What you get\n")
	require.True(t, ok)
	section, _, _ := strings.Cut(rest, "\n## ")
	bullets := bullet.FindAllString(section, -1)
	require.Greater(t, len(bullets), 8)
	rows := transport.FindAllString(readme(t), -1)
	require.Len(t, rows, 4)
	for _, text := range append(bullets, rows...) {
		assert.Regexp(t, linked, text, "a promise without a guarantee")
	}
	for _, m := range linked.FindAllStringSubmatch(readme(t), -1) {
		assert.True(t, slices.ContainsFunc(guarantees, func(g guarantee) bool { return g.id == m[1] }), "no guarantee %q", m[1])
	}
}

// TestReadmeIsShort: it is read before anything else.
func TestReadmeIsShort(t *testing.T) {
	require.LessOrEqual(t, len(strings.Fields(readme(t))), 1300)
}
