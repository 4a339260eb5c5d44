package hg

import (
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// An openEntry is an entry in the list of a context's open objects: handles that are not closed,
// and records of requests, including spare records. Since spare records stay in the list, a request
// requires no list operation when it arrives or ends.
type openEntry struct {
	of             openObject
	older, younger *openEntry // guarded by Context.mu
}

// An openObject is an object that must be notified when sessions are lost or its context is shut
// down.
type openObject interface {
	onPeersLost(why error)                 // called when sessions have been lost or the context has been closed
	cancelForShutdown(left *ShutdownError) // called by Shutdown to cancel the object if it has not completed
	answerDetached()                       // called by Shutdown some time later to answer detached requests
	countOpen(left *ShutdownError)         // counts the object in left if it is still open
	// callInfo describes the object's operation, if it has one. The Reporter, which may be nil,
	// provides details.
	callInfo() (inspect.Call, hghook.Reporter, bool)
}

// addOpenLocked adds o to the list. The caller must hold Context.mu.
func (c *Context) addOpenLocked(o *openEntry) {
	o.older, o.younger = c.open, nil
	if c.open != nil {
		c.open.younger = o
	}
	c.open = o
}

// removeOpenLocked removes o from the list. The caller must hold Context.mu.
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

// allOpen returns the open objects of c. By the time the caller examines a record, it may be
// serving another request or no request.
func (c *Context) allOpen() (all []openObject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := c.open; o != nil; o = o.older {
		all = append(all, o.of)
	}
	return all
}
