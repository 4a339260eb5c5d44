package sim

import (
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"strings"
	"sync/atomic"
)

// Check implements carrier.Names.
func (in *instance) Check(name string) error {
	rest := strings.TrimPrefix(name, scheme+"://")
	if strings.HasPrefix(rest, "@") {
		return codes.WithText(codes.ErrUnreachable, name+" is the name of a class that does not listen")
	}
	return checkName(rest)
}

// A lookup is a name lookup in progress.
type lookup struct {
	instance *instance
	event    event
	name     string
	done     func(string, error)
	canceled atomic.Bool
}

// Resolve implements carrier.Names. It takes one simulated round trip of virtual time.
func (in *instance) Resolve(text string, done func(string, error)) func() {
	if rest := strings.TrimPrefix(text, scheme+"://"); !strings.HasPrefix(rest, "@") {
		if err := checkName(rest); err != nil {
			done("", err)
			return nil
		}
	}
	l := &lookup{instance: in, name: text, done: done}
	in.w.runInTurn(l.start, true)
	return func() { l.canceled.Store(true) }
}

func (l *lookup) start() {
	w := l.instance.w
	w.stats.Lookups++
	l.event.actor = l
	w.events.schedule(&l.event, w.timeAfter(w.drawDelay()+w.drawDelay()))
}

func (l *lookup) fire(*event) {
	w := l.instance.w
	if l.canceled.Load() || l.instance.dead {
		return
	}
	w.addTrace("lookup", l.name, uint64(len(l.name)), 0)
	l.done(l.name, nil)
}
