package hg

import (
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// An openEntry is an entry of the list of a context's open objects: the handles that are not
// closed, and the records of requests, including spare ones. So a request needs no list operation
// when it arrives or ends.
type openEntry struct {
	of             openObject
	older, younger *openEntry // guarded by Context.mu
}

// An openObject is an object that the end of sessions, or of the context, concerns.
type openObject interface {
	onPeersLost(why error)                 // sessions, or the context, have ended
	cancelForShutdown(left *ShutdownError) // Shutdown cancels the object if it has not ended
	answerDetached()                       // some time later Shutdown answers detached requests
	countOpen(left *ShutdownError)         // counts the object if it is still open
	// callInfo describes the operation of the object, if it has one; the Reporter, which may be
	// nil, has details.
	callInfo() (inspect.Call, hghook.Reporter, bool)
}

// addOpenLocked adds o to the list.
func (c *Context) addOpenLocked(o *openEntry) {
	o.older, o.younger = c.open, nil
	if c.open != nil {
		c.open.younger = o
	}
	c.open = o
}

// removeOpenLocked removes o from the list.
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

// allOpen returns the open objects. A record may serve another request, or none, when the caller
// looks at it.
func (c *Context) allOpen() (all []openObject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := c.open; o != nil; o = o.older {
		all = append(all, o.of)
	}
	return all
}
