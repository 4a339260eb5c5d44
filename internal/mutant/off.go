//go:build !mutants

package mutant

// Planted tells that there are mutants in this program.
const Planted = false

// Blind tells that the tables of states are not to be looked at.
const Blind = false

// on.go says what they are.
const (
	H1CancelBeforePost   = false
	H1CancelBetween      = false
	H2PartsLate          = false
	H3DeafPull           = false
	H3bPullNotBegun      = false
	H3bPullRefused       = false
	H4LoanOutlives       = false
	H5NarrowID           = false
	H6LoansCollide       = false
	H7ReceiveStays       = false
	H8SecondError        = false
	H9ErrorSwallowed     = false
	H10TwoOwners         = false
	H11ErrorAndCallback  = false
	H12CancelRefused     = false
	H13OutputAfterCancel = false
	H14StaleToken        = false
	H15NotTold           = false
	H16FirstFailureEnds  = false
	H17ClosedEarly       = false
	DoubleEnd            = false
	CancelWins           = false
	LateAnswer           = false
	FateNotRun           = false
	CallbackFirst        = false
	PooledEarly          = false
	TimerStays           = false
	RunsLate             = false
	PlaceAtAbandon       = false
	WithdrawnButRan      = false
	AcceptWithdrawn      = false
	StaleTicket          = false
	HeldDelivered        = false
	FreeEarly            = false
	UnguardedRange       = false
	AnyAccess            = false
	SameMoveID           = false
	ReceiveStays         = false
	EnvelopeEarly        = false
	CreditOnCancel       = false
	CreditPlusOne        = false
	CreditLeaks          = false
	Unbounded            = false
	StarvedForgot        = false
	CloseForgets         = false
	NoCRC                = false
	LateCRC              = false
	AnyIncarnation       = false
	Rebinds              = false
	UserHeartbeats       = false
	SilenceIgnored       = false
	OwnFreezeBlames      = false
)
