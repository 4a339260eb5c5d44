package sm

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// Who takes a name first removes what the dead have left. It may look at a name that another is about to take: that one gets it.
func TestNamesTakenAtOnce(t *testing.T) {
	o := &Options{Dir: filepath.Join(t.TempDir(), "names")}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				p, _, err := o.listen("*")
				if err != nil {
					t.Error(err)
					return
				}
				p.close()
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A name belongs to one until that one gives it back or dies; the next gets it though others are removing what is left of it.
func TestNameOfTheDead(t *testing.T) {
	o := &Options{Dir: filepath.Join(t.TempDir(), "names")}
	p, _, err := o.listen("here")
	require.NoError(t, err)
	defer p.close()
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					o.sweep()
				}
			}
		})
	}
	for range 10 {
		for _, name := range []string{"dead", "dead" + lockSuffix} {
			require.NoError(t, os.WriteFile(filepath.Join(o.Dir, name), nil, 0o600))
		}
		p, _, err := o.listen("dead")
		if err != nil {
			t.Error(err)
			break
		}
		_, _, err = o.listen("here")
		assert.ErrorIs(t, err, na.ErrAddrInUse)
		p.close()
	}
	close(stop)
	all.Wait()
}
