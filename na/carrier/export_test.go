package carrier

// Unregister undoes Register.
func Unregister(p Plugin) {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	delete(plugins, p.Scheme())
}
