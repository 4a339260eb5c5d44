//go:build !linux

package na

// assist is not needed where plugins read in goroutines of their own.
type assist struct{}

func newAssist(*Context) (*assist, error) { return nil, nil }

func (a *assist) leaderSleeps() {}
func (a *assist) leaderWakes()  {}
func (a *assist) stop()         {}
