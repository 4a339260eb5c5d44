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
	{"once", "Every accepted operation ends exactly once: success, canceled or an error. One that is refused runs no callback.", []string{"na/natest: CancelEverywhere", "na/natest: CloseEverywhere", "hg: TestH1CancelRacesForward", "plugins/sim/ledger: TestSeeds", "internal/test/ledger: TestSeeds", "cmd/qs: TestSoak"}},
	{"trigger", "Callbacks run only inside Trigger, with no lock held, and may call anything (cancel, forward, close) but Shutdown of their own context, class or node, which returns `na.ErrBusy` there.", []string{"na/natest: CancelInCallback", "na/natest: CloseInCallback", "hg: TestCancelInsideCallbacks", "hg: TestCloseInsideCallback", "qs: TestShutdownInHandler"}},
	{"silence", "Every call gets an answer: also when the RPC is unknown, the input cannot be decoded, or the handler fails, panics or forgets to answer.", []string{"hg: TestEveryRequestIsAnswered", "hg: TestRefusedRequests", "qs: TestPanicAndSilence"}},
	{"fate", "Every error says whether the request did not run, ran, or may have run: of all attempts, if Retry or an interceptor made several. Codes of a remote error never look like what happened here, with two exceptions: when the caller's own context has ended the error matches that, and a refusal by an authorizer matches ErrPermission, unless it gave a code of its own.", []string{"qs: TestFateOfAttempts", "qs: TestNextAtOnce", "qs: TestDeadlineOfHandler", "qs: TestAuthorize", "hg: TestFateOfSeveral", "hg: TestFateOfTheLent", "hg: TestFateOfSuccess", "hg: TestAnswerAfterTheContext", "hg: TestAnswerAfterTheEnd", "hg: TestCodesOfHandlers", "hg: TestErrorText", "internal/test/ledger: TestSeeds", "cmd/qs: TestSoak"}},
	{"contract", "What a caller sends and the target does not know, and what it reads and the target did not send, is an error with the name of the field, never silently less.", []string{"qs: TestEvolution", "qs: TestDisagreements", "internal/schema: TestRandomTypes", "examples/blob: TestCompatible"}},
	{"typed", "A typed call needs a function and its types, and a server one line more.", []string{"qs: TestCall", "examples/greet: TestGreet", "examples/readme: TestFirstProgram"}},
	{"misuse", "A request that has ended can be answered late, twice or by the wrong goroutine: the answer is refused, and reaches nobody else's call.", []string{"hg: TestMisuseAtRandom", "hg: TestKeptUntilAnother", "hg: TestAnsweredTwice", "hg: TestRequestNeedsNoClose"}},
	{"deadline", "A deadline travels with its call, as the time that is left: what is too late is neither sent nor run, but time on the way does not count, and the handler's context ends with it.", []string{"qs: TestDeadlineTravels", "qs: TestDeadlineOfHandler", "hg: TestTimeoutWithoutEnvelope", "hg: TestExpiredInTheQueue", "hg: TestExpiredBehindMaxActive", "hg: TestDeadlineEndsContext"}},
	{"timeout", "A method's own time limit at its server ends its handler as the caller's deadline does, and the caller gets a timeout.", []string{"qs: TestMethodTimeout", "qs: TestMethodTimeoutInQueue"}},
	{"abandon", "The context of a handler ends when its origin abandons the call or is gone, and so may the calls that it makes.", []string{"hg: TestAbandonEndsHandlers", "hg: TestAbandonPropagates", "hg: TestPeerLossEndsHandlers", "qs: TestAbandonEndsHandler"}},
	{"withdraw", "A request can be taken back from its target, with proof that its handler did not and will not run.", []string{"qs: TestFutureEndedAtEachPoint", "hg: TestWithdrawBuffered", "hg: TestWithdrawTooLate", "hg: TestWithdrawRacesDispatch", "na/natest: WithdrawHeld", "examples/hedge: TestHedge", "internal/test/ledger: TestSeeds", "cmd/qs: TestSoak"}},
	{"bodies", "Input and output larger than a message travel unnoticed, within limits, and leave nothing behind when the origin cancels.", []string{"hg: TestBodiesInline", "hg: TestMercuryRPC/InputOverflow", "hg: TestMercuryRPC/OutputOverflow", "hg: TestH15OversizeResponsesToCanceledOrigin", "qs: TestLargeValues"}},
	{"http", "Over HTTP each error has a code, a status and the fate of its request, a deadline travels, and a request that is canceled ends the context of its handler.", []string{"qs/httpgate: TestErrors", "qs/httpgate: TestDeadline", "qs/httpgate: TestCancel", "qs/httpgate: TestCurl", "qs/httpgate: TestBrowserPage"}},
	{"rotation", "Certificates and authorities that LoadTLS has read from files may be replaced under load: no call fails but those of a peer that the new ones do not vouch for.", []string{"qs: TestAuthoritiesRotate", "qs: TestCertificateReplaced"}},
	{"expiry", "A session does not outlive the certificates that it was made with by more than `Config.CertificateGrace`. Where they were renewed no call fails that ends within it; else calls that begin fail, did not run, and name the certificate.", []string{"qs: TestCertificateRenewed", "qs: TestCertificateExpires", "na: TestSessionRetires", "na: TestRetirementEnds"}},
	{"authorize", "A request is denied, and its handler does not run, unless the authorizer returns nil. It knows who calls by a verified name, and so do handlers and interceptors.", []string{"hg: TestAuthorizerDenies", "qs: TestAuthorize", "qs: TestRootAuthorize", "qs: TestCallerByName"}},
	{"active", "Handlers at work are bounded, for all, for each peer, and for a method that says so; a cancel at the origin frees no place.", []string{"qs: TestMethodLimits", "hg: TestMaxActive", "hg: TestMaxActivePerPeer", "hg: TestRapidReset"}},
	{"probe", "A ping and the health probes of a client are answered whatever limits on requests are reached, and only by a process that drives its node.", []string{"na/natest: ProbeNotDriven", "na/natest: ProbeBesideRequests", "qs: TestPingBesideFilledLimits", "qs: TestPingOfAFrozenNode"}},
	{"held", "A caller whose requests wait at a target is told which limit they wait for, and a call that ends at its deadline meanwhile names it.", []string{"na/natest: Held", "qs: TestHeldCallsNameLimit", "qs: TestHeldByAFrozenNode", "hg: TestLimitNamedToOrigin"}},
	{"authorizer", "With workers, an authorizer that blocks holds up nobody but the request that it is asked about.", []string{"hg: TestInlineUnderAnAuthorizer", "qs: TestAuthorizeBlocks", "qs: TestAuthorizeHealthBesideWorkers"}},
	{"shutdown", "Shutdown refuses new calls, lets those under way end within a bound, and reports what was left or not confirmed by peers. Handlers can see it begin, and no reader of theirs that does not read is waited for when they end with an error.", []string{"qs: TestDrainWithStuckReaders", "qs: TestDraining", "hg: TestShutdownDrains", "hg: TestShutdownOverASlowPath", "hg: TestShutdownLingers", "hg: TestH17", "qs: TestShutdownUnderStream", "bulk: TestShutdownWaitsForTransfers", "examples/blob: TestSIGTERM"}},
	{"upgrade", "Releases that follow one another talk to each other, over every transport: processes are replaced one by one under load, and back, and no idempotent call fails. What a later release sends is skipped or refused, and nobody else's session is lost.", []string{"internal/test/upgrade: TestRollingUpgrade", "internal/test/upgrade: TestReplayToListener", "internal/test/upgrade: TestReplayToDialer", "internal/test/upgrade: TestFuture", "internal/test/upgrade: TestFutureListener", "internal/frame: TestAgree", "hg: TestLaterFields"}},
	{"waits", "A wait with a context cancels when the context ends, and returns only after the callback has run.", []string{"request: TestWaitContext", "request: TestWaitTimesOutExactly", "request: ExampleRequest_WaitContext"}},
	{"allocations", "A raw call allocates nothing in the steady state, a bulk transfer itself only, a typed call once, beside what its values need.", []string{"hg: TestRawCallsAllocateNothing", "bulk: TestTransfersAllocateLittle", "qs: TestAllocations"}},
	{"grpc", "A gRPC service and its generated client run over every transport by contrib/grpc: a call ends with its status, and its messages arrive in order, each once, whenever its server is killed, stopped, drained or frozen, or the call is canceled.", []string{"contrib/grpc: TestChannel", "contrib/grpc: TestInterop", "contrib/grpc: TestFaultsAtEachEvent", "contrib/grpc: TestProcesses", "contrib/bench/etcd: TestEtcd"}},

	{id: ":Cancel"},
	{"cancel", "Cancel is local: Trigger right after it runs the canceled callback, whether the peer is alive, frozen or gone.", []string{"na/natest: CancelNow", "na/natest: FrozenPeer", "hg: TestCancelThenTriggerWithoutProgress", "internal/test/proctest: TestStoppedTarget", "cmd/qs: TestSoak"}},
	{"taken-back", "A Future that is canceled, abandoned or withdrawn at any moment ends, between attempts too, and with every interceptor.", []string{"qs: TestFutureEndedAtEachPoint", "qs: TestFutureEndedAtRandom", "hg: TestForbid", "internal/test/ledger: TestSeeds", "cmd/qs: TestSoak"}},
	{"cancel-all", "It reaches calls, responses, lookups, calls of a process to itself, large bodies, and every piece of a bulk transfer.", []string{"hg: TestCancelRespond", "hg: TestLookupCancel", "hg: TestCancelOversizeOutput", "na/natest: BodyCanceledAnywhere", "na/natest: CancelSelf", "plugins/tcp: TestCancelPut", "examples/demo: TestDemo"}},
	{"buffers", "After the canceled callback nobody reads or writes your memory, and the connection goes on.", []string{"na/natest: CanceledGetUntouched", "na/natest: CanceledPutUnread", "na/natest: CanceledReceiveUntouched", "plugins/tcp: TestCancelGet", "qs: TestLentMemory", "cmd/qs: TestSoak"}},
	{"reuse", "The handle may be forwarded again; a late answer is dropped and counted.", []string{"na/natest: ReuseAfterCancel", "na/natest: DropLate", "hg: TestH5LateAnswerAfterReuse", "examples/cancel: TestCancel"}},
	{"success-wins", "Success wins over a cancel that comes after the response.", []string{"qs: TestFutureEndedAtEachPoint", "hg: TestCancelAfterArrival"}},

	{id: ":Flow control"},
	{"envelopes", "Each peer is guaranteed room for a number of requests; the rest waits at the source, within a limit, or fails there if you say so, and nothing deadlocks.", []string{"na/natest: Envelopes", "na/natest: SendQueueFull", "na/natest: NoCreditFails", "na/natest: HeadToHead", "hg: TestCallWaitsForEnvelope"}},
	{"reserved", "The guarantee is reserved memory, to the byte: Open fails if it cannot be met, and a peer too many gets an error with both figures.", []string{"internal/test/proctest: TestGERExample", "na/natest: GuaranteedToTheByte", "na/natest: NeedAndWant", "na: TestContract"}},
	{"slow", "A slow target does not slow the others, and a program tells how many envelopes it really needs.", []string{"hg: TestSlowTargetAmongTen", "internal/test/proctest: TestSlowTargetAmongTen", "na/natest: HighWater", "cmd/qs: TestGEROfRunningProgram"}},
	{"streams", "A stream whose reader goes on comes to its end, whatever becomes of the others, and unread bytes are bounded to the byte. Each byte comes once and in order, or the reader gets an error.", []string{"na/natest: StreamReserveUnderPressure", "na/natest: StreamWindowExact", "na/natest: StreamMany", "na: TestStreamModel", "plugins/sim/ledger: TestStreams"}},
	{"bulk-aside", "A message does not wait behind bulk data to the same peer (tcp on Linux).", []string{"plugins/tcp: TestMessagesPassBulk", "plugins/tcp: TestBulkOfListener"}},

	{id: ":Bulk data"},
	{"bulk", "A bulk transfer is exact for all segments, offsets and sizes, in both directions, also from a third party.", []string{"bulk: TestMercuryBulk", "na/natest: MoveSegments", "examples/bulk: TestBulk"}},
	{"pool", "Once the Close of memory of bulk.Alloc has completed, a read of it by a peer is an error there, even if that peer was stopped meanwhile. No peer can delay the Close, or write.", []string{"plugins/sm: TestPoison", "plugins/sm: TestReachRevoked", "plugins/sm: TestLenderStoppedAndKilled", "plugins/sm: TestBadChunks", "plugins/sm: TestLenderWritesAnything"}},
	{"keys", "Once the Close of a bulk handle of other memory has completed no peer can touch it. Keys cannot be guessed and are checked on every access.", []string{"na/natest: MoveAfterDeregister", "na/natest: MoveWrongKey", "na/natest: MovePermission", "na/natest: MoveBounds", "plugins/tcp: TestDeregisterWhileRead", "bulk: TestH14CloseInsideCallbackOfCanceledForward"}},
	{"one-sided", "One side may sleep: memory is served although its owner drives nothing.", []string{"plugins/tcp: TestOneSided"}},
	{"readers", "Memory of a peer is an io.ReaderAt, io.Reader or io.Writer; a mapped file that is cut short is an error, not a crash.", []string{"bulk: TestReader", "bulk: TestWriter", "bulk: TestFileTruncated", "bulk: ExampleNewReader"}},
	{"results", "Results of a stream arrive in order, each once, and then the end or the handler's error; a caller that stops reading holds the handler back, and one that leaves its loop ends it.", []string{"qs: TestStream", "qs: TestStreamEnds", "qs: TestStreamIsBounded", "qs: TestStreamSeeds", "internal/test/proctest: TestStreamOfEndedTarget", "internal/test/proctest: TestStreamToEndedOrigin"}},
	{"duplex", "Items of a caller arrive in order, each once, beside those of its handler; a call of which nothing has moved may be repeated, with all that was sent.", []string{"qs: TestDuplex", "qs: TestDuplexEnds", "qs: TestUpload", "qs: TestDuplexRetry"}},
	{"blocked", "A call with From or Into ends at its deadline although a Read or Write of the program is blocked.", []string{"qs: TestBlockedStreamEndsAtDeadline", "qs: TestBlockedConnIsInterrupted", "qs: TestBlockedStreamInSimulator"}},
	{"lent", "Once a typed call has returned, whatever its error, nobody touches the memory or the file that it lent.", []string{"qs: TestLentMemory", "qs: TestLateUse", "qs: TestSources", "qs: TestSinks", "internal/test/ledger: TestSeeds", "cmd/qs: TestSoak"}},
	{"blob", "A file store with fail-over loses no transfer when one server is killed and one is stopped, on real sockets and under a thousand seeds.", []string{"examples/blob: TestFailOver", "examples/blob: TestSimulated"}},

	{id: ":Peers and transports"},
	{"restart", "A request that a server has not taken when it ends in order did not run, and says so: it is repeated at the next one.", []string{"qs: TestOrderlyRestart", "qs: TestOrderlyRestartSim", "na: TestGoawayCounts"}},
	{"replicas", "If one of several servers freezes, dies or stops, Retry fails no idempotent call. Once the failure is noticed, only trial calls go there until it answers.", []string{"qs: TestReplicaFreezes", "qs: TestShutdownTimeoutFailsNoRetry", "qs: TestHungHandlers", "internal/test/proctest: TestFrozenReplica"}},
	{"names", "A Peer follows the addresses of its service, by DNS or a Resolver of the program, and spreads calls over them; an address that was removed gets no new calls, and a service without calls is not watched.", []string{"qs: TestResolver", "qs: TestResolverCalledAfterFailure", "qs: TestDNS", "qs: TestLeastLoaded", "qs: TestHealth", "qs: TestRefusedCallUsesNextAddress"}},
	{"families", "A host with IPv4 and IPv6 addresses is reached over tcp and udp where one of them works, 250 ms later at most for each that says nothing; when none does the error names each address with its reason.", []string{"na: TestHostStaggered", "na: TestHostFails", "na: TestHostTooLate", "plugins/tcp: TestFamilies", "plugins/tcp: TestFamiliesDead", "plugins/udp: TestFamilies", "plugins/udp: TestFamiliesDead", "qs: TestDNSFamilies", "internal/test/proctest/netns: TestFamilyDead"}},
	{"hedge", "A hedged call returns the first answer, and the context of the slower handler ends.", []string{"qs: TestHedge", "qs: TestHedgeFails", "qs: TestHedgeOvertaken", "qs: TestFirst", "internal/test/ledger: TestSeeds"}},
	{"peers", "A peer that dies is noticed, with a fault callback; one that restarts at the same address is a new peer.", []string{"internal/test/proctest: TestKilledTarget", "hg: TestPeerLost", "plugins/tcp: TestRestart", "na/natest: BoundAddress", "cmd/qs: TestSoak"}},
	{"looks", "A process that drives its contexts looks at its sockets every 5 ms at least, whatever its own transfers, timers and callbacks queue, and gives no peer up before it has.", []string{"na: TestLeaderPollsInEveryTurn", "na: TestPeerNotLostUnread"}},
	{"usurper", "A HELLO in the name of a peer that still answers cannot end its session.", []string{"na: TestTwoConnectionsUp", "plugins/tcp: TestForgedHelloKeepsSession", "plugins/udp: TestForgedHelloKeepsSession"}},
	{"beside", "A session uses one transport from its first message to its last, and shared memory only after that was offered to the peer over the first transport.", []string{"na: TestOfferMade", "na: TestOfferFails", "plugins/all: TestConformance", "qs: TestBeside", "qs: TestBesideAuthorize", "internal/test/proctest/netns: TestPlaces"}},
	{"transports", "Every plugin keeps the same rules; hg and bulk are tested over each.", []string{"plugins/tcp: TestConformance", "plugins/udp: TestConformance", "plugins/sm: TestConformance", "plugins/sim: TestConformance", "cmd/qs: TestSoak"}},
	{"udp", "Messages over udp arrive once and in order whatever the network loses, repeats or reorders.", []string{"plugins/udp/internal/arq: TestUT1ExactlyOnceInOrder", "plugins/udp/internal/arq: TestHandshakeFaults", "plugins/udp/internal/arq: TestReplay", "internal/test/proctest/netns: TestLoss", "internal/test/proctest/netns: TestDuplicates", "cmd/qs: TestSoak"}},
	{"amplification", "A udp listener sends a stranger no more bytes than he has sent.", []string{"plugins/udp/internal/arq: TestUT32Amplification"}},
	{"hostile", "Bytes from a peer are hostile until checked.", []string{"hg/codec: TestMsgpackHostile", "hg/codec: FuzzDecode", "plugins/tcp: TestBadHello", "plugins/tcp: TestBadSession", "plugins/udp/internal/arq: FuzzMachine", "bulk: FuzzCalls"}},
	{"start", "Processes that start together find each other, or an error names who is missing; afterwards nobody needs the server.", []string{"rendezvous: TestStartup", "rendezvous: TestMissingMember", "rendezvous: TestHostileClients", "cmd/qs: TestRun", "examples/allgather: TestServerGone", "examples/allgather: TestKilled"}},
	{"replay", "One seed, one run: the simulator replays.", []string{"plugins/sim/ledger: TestReplay", "plugins/sim: TestCoroutines", "internal/test/ledger: TestReplay", "examples/simtest: TestCounter"}},

	{id: ":C Mercury (ofi+tcp)"},
	{"mercury", "C programs of Mercury call Go programs, and are called by them, byte for byte as they call each other: plain, long and one-way calls, lent memory, checksums.", []string{"mercury/internal/hgwire: TestGolden", "mercury/internal/xnet: TestGolden", "mercury: TestDoubleCalls", "mercury: TestDoubleServes", "mercury: TestLiveUnitServer", "mercury: TestLiveUnitClient"}},
	{"mercury-memory", "When a call, a read, a write or the Close of lent memory has returned, nobody touches the memory, also if the C process was stopped or killed in the middle; its old key reaches nothing.", []string{"mercury: TestGetAbandoned", "mercury: TestGetAbandonedInResponse", "mercury: TestPutAbandoned", "mercury: TestCloseUnderRead", "mercury: TestCloseUnderWrite", "mercury: TestStopped", "mercury: TestLiveEndsInTransfer", "mercury: TestLiveClientEndsInTransfer"}},
	{"mercury-hostile", "What a peer sends is checked, and all that it can make grow is bounded; it loses its own connection at worst. Damage that a checksum shows is not handed on.", []string{"mercury: TestHostileBytes", "mercury: TestWrongAccess", "mercury: TestForged", "mercury: TestUnknown", "mercury: TestNeverReads", "mercury: TestServedOnce", "mercury: TestDamagedRequest", "mercury: TestDamagedResponse"}},
	{"yokan", "A Go program uses Yokan's databases of releases 0.9 and 0.10 as C does. An answer that does not fit the request is an error, and nothing of it is returned; what is too long for a buffer is asked for again, or named.", []string{"contrib/yokan: TestDouble", "contrib/yokan: TestLive", "contrib/yokan: TestHostileAnswers", "contrib/yokan: TestGetGrows", "contrib/yokan: TestListRoom"}},
	{"mercury-gateway", "A gateway calls the C processes that it was told of, and no others; a service reaches the memory of a C client while it handles its request, and no longer.", []string{"mercury/gateway: TestCallC", "mercury/gateway: TestServeC", "cmd/qs: TestMercuryGateway"}},

	{id: ":TLS (tcp, udp)"},
	{"tls", "TLS 1.3 and the protocol `quicksilver/1`, or no session, whatever the configuration says.", []string{"plugins/tcp: TestTLSDowngrade", "cmd/qs: TestTLS", "examples/blob: TestTLS"}},
	{"tls-said", "A node that is told to use TLS, in whichever way, answers nothing without; settings that contradict each other are refused.", []string{"qs: TestTLSConfigs", "qs: TestConfigContradictions"}},
	{"tls-refused", "A peer without a valid certificate, if one is asked for, gets no further than the handshake; so does a plain one. The error says what to do.", []string{"plugins/tcp: TestTLSRefused", "plugins/udp: TestTLSRefused", "cmd/qs: TestTLSMistakes"}},
	{"tls-identity", "Each message comes with what its sender has proven: `Context.Identity`.", []string{"plugins/tcp: TestTLSIdentity", "plugins/udp: TestTLSIdentity"}},
	{"tls-bulk", "The connection for bulk data is of the same peer as its session.", []string{"plugins/tcp: TestTLSBulkOfAnother", "plugins/tcp: TestTLSBulkToAnother"}},
	{"tls-name", "A peer whose certificate does not carry the name, or the IP address, that it was looked up by is refused, and a session is not used for another name than its certificate carries.", []string{"plugins/tcp: TestTLSNames", "plugins/tcp: TestTLSNameOfAnother"}},
	{"tls-files", "Certificate files that are replaced are used for the next connection.", []string{"qs: TestCertificateReplaced"}},
	{"tls-replay", "A recorded session that is played again opens nothing; over udp it begins no handshake, either.", []string{"plugins/tcp: TestTLSReplay", "plugins/udp: TestTLSReplay", "plugins/udp: TestTokenOnce"}},
	{"tls-broken", "Truncation, damage and garbage end that connection over tcp, are a lost packet over udp, and harm no other.", []string{"plugins/tcp: TestTLSBroken", "plugins/udp/internal/protect: TestForged", "plugins/udp: TestTLSBadPaths"}},
	{"tls-moves", "A peer over udp whose address changes goes on when the new one is proven.", []string{"plugins/udp: TestTLSAddressChanges"}},
	{"tls-strangers", "Unauthenticated peers over tcp are limited to 64 KiB (128 KiB with an accepted certificate), five seconds and 256 connections. Over udp nothing is kept for one whose address is not proven.", []string{"plugins/tcp: TestTLSHalfOpen", "plugins/tcp: TestTLSTooMuch", "plugins/udp: TestFlood"}},
	{id: ":The page for operators"},
	{"page-causes", "The page of package debug, and its JSON, name in words what is wrong: a stalled call, a peer that takes nothing, a peer that was lost with something under way, a stream that nobody reads, a limit that is reached, a leak, a method that has become slow, or all of them, or one that fails.", []string{"qs/debug: TestCauseStalledCall", "qs/debug: TestStalledNamesPeers", "qs/debug: TestStuckNamesCallers", "qs/debug: TestCausePeerOutOfEnvelopes", "qs/debug: TestCausePeerLost", "qs/debug: TestCauseStuckStream", "qs/debug: TestCauseLimitReached", "qs/debug: TestCauseLeak", "qs/debug: TestLeakNamesUserOfMemory", "qs/debug: TestCauseSlowMethod", "qs/debug: TestSlowMethodStaysReported", "qs/debug: TestSlowMachine", "qs/debug: TestSlowTailsOfBusyMachine", "qs/debug: TestSlowCommonDelayIsOneCause", "qs/debug: TestSlowMethodNamesResources", "qs/debug: TestCauseErrors"}},
	{"page-place", "The page can be kept open: keyboard focus, selection and scrolling stay while it renews itself, and it does not grow. It works under any path, on a phone, in the dark, and without a script.", []string{"qs/debug: TestBrowserKeepsFocusAndScroll", "qs/debug: TestBrowserReorders", "qs/debug: TestBrowserMemory", "qs/debug: TestBrowserLayoutAndPolicy", "qs/debug: TestLinksAreRelative", "qs/debug: TestPage"}},
	{"page-safe", "What peers choose is text on the page, whatever it holds; it loads nothing from elsewhere, its policy lets no script run but its own, and a function of the program decides who sees it.", []string{"qs/debug: TestHostileNames", "qs/debug: TestBrowserLayoutAndPolicy", "qs/debug: TestGuard"}},
	{"page-bounds", "The memory and the length of the page are bounded, whatever peers call and how many there are.", []string{"qs/debug: TestBounds", "qs/debug: TestPeersAreForgotten", "qs/debug: TestManyStreamsAndPeers"}},
	{"page-json", "The JSON of the page has the shape that MONITORING documents, and nothing else.", []string{"qs/debug: TestDocumentedShape", "qs/debug: TestShape"}},
}

// guaranteesPage writes docs/GUARANTEES.md.
func guaranteesPage() string {
	var b strings.Builder
	b.WriteString(`# Guarantees

What Quicksilver promises, and the tests that show it. This page is written by ` + "`go test ./examples/readme -update`" + ` from
` + "`examples/readme/guarantees_test.go`" + `; a test fails when a promise has no test, or names one that does not exist. What is named with
` + "`na/natest`" + ` is a rule of the conformance suite, which runs over every plugin.
`)
	for _, g := range guarantees {
		if title, ok := strings.CutPrefix(g.id, ":"); ok {
			fmt.Fprintf(&b, "\n## %s\n\n|promise|shown by|\n|---|---|\n", title)
			continue
		}
		fmt.Fprintf(&b, "|<a id=\"%s\"></a>%s|`%s`|\n", g.id, g.promise, strings.Join(g.tests, "`, `"))
	}
	return b.String()
}

var update = flag.Bool("update", false, "write docs/GUARANTEES.md, and the programs that pages show, anew")

func TestGuarantees(t *testing.T) {
	file := filepath.Join(root, "docs/GUARANTEES.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(guaranteesPage()), 0o666))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, guaranteesPage(), string(b), "go test ./examples/readme -update writes it anew")
	for _, g := range guarantees {
		assert.Equal(t, strings.HasPrefix(g.id, ":"), len(g.tests) == 0, "%q: a promise without a test", g.id)
	}
}

var (
	linked = regexp.MustCompile(`docs/GUARANTEES\.md#([a-z-]+)\)`)
	bullet = regexp.MustCompile(`(?m)^- (.*(?:\n  .*)*)`)
)

var transport = regexp.MustCompile("(?m)^\\|`\\w+://.*$")

// TestReadmePromises checks that each bullet and each transport of what the library does links to a
// guarantee that is there.
func TestReadmePromises(t *testing.T) {
	_, rest, ok := strings.Cut(readme(t), "\n## What you get\n")
	require.True(t, ok)
	section, _, _ := strings.Cut(rest, "\n## ")
	bullets := bullet.FindAllString(section, -1)
	require.Greater(t, len(bullets), 6)
	rows := transport.FindAllString(readme(t), -1)
	require.Len(t, rows, 4)
	for _, text := range append(bullets, rows...) {
		assert.Regexp(t, linked, text, "a promise without a guarantee")
	}
	for _, m := range linked.FindAllStringSubmatch(readme(t), -1) {
		assert.True(t, slices.ContainsFunc(guarantees, func(g guarantee) bool { return g.id == m[1] }), "no guarantee %q", m[1])
	}
}
