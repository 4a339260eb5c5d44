package hg

import (
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// An openEntry is a place in the list of what a context may have open: the handles that are not closed, and the records of requests, also
// while they serve none. So a request is not entered into the list, nor taken out.
type openEntry struct {
	of             openObject
	older, younger *openEntry // Context.mu guards them
}

// An openObject is what may have to end with its context.
type openObject interface {
	onPeersLost(why error)                 // sessions have ended, or the context
	cancelForShutdown(left *ShutdownError) // Shutdown ends what has not ended
	answerDetached()                       // a while later: ends what still nobody has ended
	countOpen(left *ShutdownError)         // counts what is left
	// info says what it is in the middle of, if anything, and who knows more, which may be nil.
	callInfo() (inspect.Call, hghook.Reporter, bool)
}

// addOpenLocked puts o into the list. Locked.
func (c *Context) addOpenLocked(o *openEntry) {
	o.older, o.younger = c.open, nil
	if c.open != nil {
		c.open.younger = o
	}
	c.open = o
}

// removeOpenLocked takes it out again. Locked.
func (c *Context) removeOpenLocked(o *openEntry) {
	if o.older != nil {
		o.older.younger = o.younger
	}
	if o.younger != nil {
		o.younger.older = o.older
	} else {
		c.open = o.older
	}
	o.older, o.younger = nil, nil
}

// allOpen returns what may be open now. A record may serve no request, or another one by the time it is looked at.
func (c *Context) allOpen() (all []openObject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := c.open; o != nil; o = o.older {
		all = append(all, o.of)
	}
	return all
}
