//go:build !linux

package na

import "time"

// assist is not needed where plugins read in goroutines of their own.
type assist struct{}

func newAssist(*Context) (*assist, error) { return nil, nil }

func (a *assist) start()                    {}
func (a *assist) drop()                     {}
func (a *assist) leaderSleeps()             {}
func (a *assist) leaderWakes(time.Duration) {}
func (a *assist) attend()                   {}
func (a *assist) stop()                     {}
