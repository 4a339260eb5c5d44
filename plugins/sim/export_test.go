package sim

// Remains counts what a quiet world should have none of: connections, events that are held, segments under way.
func (w *World) Remains() (conns, held, segments int) {
	w.take()
	defer w.give()
	for _, c := range w.open {
		for i := range c.pipes {
			segments += len(c.pipes[i].segs)
		}
	}
	return len(w.open), len(w.held), segments
}

// Sleepers counts the goroutines that wait for something to happen.
func (w *World) Sleepers() int { return int(w.waiting.Load()) }
