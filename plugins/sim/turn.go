package sim

import (
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// take waits for the turn.
func (w *World) take() {
	w.mu.Lock()
	w.takeLocked()
	w.mu.Unlock()
}

func (w *World) takeLocked() {
	for w.turn {
		w.takers++
		w.sleepLocked()
		w.takers--
	}
	w.turn = true
	w.creditLocked()
}

// sleepLocked waits until somebody broadcasts.
func (w *World) sleepLocked() {
	w.waiting.Add(1)
	w.cond.Wait()
	w.waiting.Add(-1)
}

// give runs the errands that came in meanwhile and gives the turn up.
func (w *World) give() {
	w.settle()
	w.mu.Lock()
	w.giveLocked()
}

// giveLocked is give with the lock held, which it returns.
func (w *World) giveLocked() {
	for w.asked.Load() && !w.broken {
		w.mu.Unlock()
		w.settle()
		w.mu.Lock()
	}
	w.turn = false
	if w.waiting.Load() > 0 { // sleepers look at what has been set
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// An errand is what somebody without the turn wants done.
type errand struct {
	kind errandKind
	link *engine.Link
	end  *end
	look *lookup
	port *port
	last []byte
}

type errandKind uint8

const (
	errandFlush errandKind = iota
	errandDial
	errandCut
	errandLookup
	errandRelease
)

// ask leaves an errand, and runs it at once if nobody has the turn and now is set.
func (w *World) ask(e errand, now bool) {
	w.mu.Lock()
	w.todo = append(w.todo, e)
	w.asked.Store(true)
	switch {
	case w.turn:
	case now:
		w.takeLocked()
		w.giveLocked()
		return
	case w.waiting.Load() > 0:
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// run does an errand.
func (w *World) run(e *errand) {
	switch e.kind {
	case errandFlush:
		if ep := e.link.Endpoint(); ep != nil {
			ep.Lock()
			en, _ := e.link.Conn.(*end)
			ep.Pause()
			if en != nil {
				en.pump()
			}
		}
	case errandDial:
		e.end.c.begin()
	case errandCut:
		e.end.close(e.last)
	case errandLookup:
		e.look.begin()
	case errandRelease:
		e.port.release()
	}
}

// settle runs the errands and looks at the ports that were poked. The turn is held.
func (w *World) settle() {
	for w.asked.Load() && !w.broken {
		w.mu.Lock()
		todo, poked := w.todo, w.poked
		w.asked.Store(false)
		w.todo, w.spare = w.spare[:0], nil
		w.poked, w.poking = w.poking[:0], nil
		w.mu.Unlock()
		for i := range todo {
			w.run(&todo[i])
		}
		clear(todo)
		for i, p := range poked {
			p.poked.Store(false)
			p.look()
			poked[i] = nil
		}
		w.mu.Lock()
		w.spare, w.poking = todo[:0], poked[:0]
		w.mu.Unlock()
	}
}
