package debug_test

import (
	"crypto/subtle"
	"log"
	"net/http"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// A server with a page at http://localhost:6060/, and probes at /healthz and /readyz.
func Example() {
	node, err := qs.Open("tcp://:7000", qs.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	web := &http.Server{Addr: "localhost:6060", Handler: debug.New(node), ReadHeaderTimeout: 10 * time.Second}
	go func() { log.Print(web.ListenAndServe()) }()
}

// A page next to other handlers of the program, which counts calls that have ended and requires a
// password.
func ExamplePage_Attach() {
	var cfg qs.Config
	secret := []byte("from a file")

	page := new(debug.Page)
	page.Attach(&cfg) // before qs.Open: calls that end are counted
	page.Guard = func(w http.ResponseWriter, r *http.Request) bool {
		if _, password, _ := r.BasicAuth(); subtle.ConstantTimeCompare([]byte(password), secret) == 1 {
			return true
		}
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	http.Handle("/debug/qs/", page)
	node, err := qs.Open("tcp://:7000", cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
}
