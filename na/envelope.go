package na

// An EnvelopeOwner is the plugin's side of envelopes.
type EnvelopeOwner interface {
	AcceptEnvelope(e *Envelope)
	FreeEnvelope(e *Envelope)
}

// An Envelope is an unexpected message in the room that was guaranteed to its sender. Data is valid until Free.
//
//	RecvUnexpected ─► Envelope ─ Accept: the sender may use the room again ─► Free: the bytes go back
type Envelope struct {
	Data []byte
	From Addr // bound to the session that it came on
	Tag  Tag

	Owner    EnvelopeOwner // plugin's
	Link     any           // plugin's
	Accepted bool          // plugin's
	Buf      []byte        // plugin's: the whole buffer under Data
}

// Accept returns the guaranteed room to the sender: the message is no longer waiting. Free does it too.
func (e *Envelope) Accept() { e.Owner.AcceptEnvelope(e) }

// Free ends the use of Data. It is called exactly once.
func (e *Envelope) Free() { e.Owner.FreeEnvelope(e) }
