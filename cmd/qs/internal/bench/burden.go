package bench

import "runtime"

// Burden starts n goroutines, each of which keeps a processor busy until the process exits.
func Burden(n int) {
	for range n {
		go func() {
			for x := uint64(1); ; x = x*6364136223846793005 + 1 {
				if x == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
}
