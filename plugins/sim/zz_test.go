package sim_test

import (
	"testing"
	"time"
)

func TestZZ(t *testing.T) {
	for seed := range uint64(3000) {
		w := storm(t, 1000+seed)
		w.Heal()
		w.Sleep(time.Minute)
		if c, h, s := w.Remains(); c+h+s > 0 {
			t.Errorf("seed %d: %d %d %d", seed, c, h, s)
		}
	}
}
