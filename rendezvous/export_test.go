package rendezvous

// StartIn is Start with an environment of its own.
var StartIn = startWith

// Plant has f called with what any member has sent, until the returned function is called.
func Plant(f func(b []byte)) (remove func()) {
	failpoint.Store(&f)
	return func() { failpoint.Store(nil) }
}
