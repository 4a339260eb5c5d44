package qsprom_test

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root    = "github.com/quicksilver-rpc/quicksilver"
	release = "v0.1.0"
)

// TestFetched checks a program that fetches this module and contrib/otel as a user does, from a
// proxy that has the release: it builds with the requirements of their go.mod files, without
// go.work.
func TestFetched(t *testing.T) {
	repo, err := filepath.Abs("../..")
	require.NoError(t, err)
	proxy, dir := t.TempDir(), t.TempDir()
	for _, module := range []string{"", "contrib/otel", "contrib/prometheus"} {
		publish(t, proxy, repo, module)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(`package main

import (
	"github.com/quicksilver-rpc/quicksilver/qs"
	qsotel "github.com/quicksilver-rpc/quicksilver/contrib/otel"
	qsprom "github.com/quicksilver-rpc/quicksilver/contrib/prometheus"
)

func main() {
	client, err := qsotel.Client(qsotel.Config{})
	if err != nil {
		panic(err)
	}
	cfg := qs.Config{ClientInterceptors: []qs.Interceptor{client}}
	cfg.HG.Observe = qsprom.New().Observe
	node, err := qs.Open("tcp://", cfg)
	if err != nil {
		panic(err)
	}
	_ = node.Close()
}
`), 0o600))
	cache := runGo(t, repo, nil, "env", "GOMODCACHE")
	env := []string{
		"GOWORK=off", "GOFLAGS=-modcacherw", "GOMODCACHE=" + t.TempDir(), "GOSUMDB=off",
		"GOPROXY=file://" + filepath.ToSlash(proxy) + ",file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + ",https://proxy.golang.org",
	}
	runGo(t, dir, env, "mod", "init", "example.com/user")
	runGo(t, dir, env, "get", root+"/contrib/otel@"+release, root+"/contrib/prometheus@"+release)
	runGo(t, dir, env, "vet", ".")
	require.Contains(t, runGo(t, dir, env, "list", "-m", "all"), root+" "+release)
}

// runGo runs the go command, and returns what it prints.
func runGo(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	require.NoError(t, err, "go %s: %s", args, failed.String())
	return strings.TrimSpace(string(out))
}

// publish puts a module of this checkout into a proxy, as the release.
func publish(t *testing.T, proxy, repo, module string) {
	t.Helper()
	name := strings.TrimSuffix(root+"/"+module, "/")
	at := filepath.Join(proxy, filepath.FromSlash(name), "@v")
	require.NoError(t, os.MkdirAll(at, 0o700))
	from := filepath.Join(repo, filepath.FromSlash(module))
	mod, err := os.ReadFile(filepath.Join(from, "go.mod"))
	require.NoError(t, err)
	for suffix, text := range map[string][]byte{".mod": mod, ".info": fmt.Appendf(nil, `{"Version":%q}`, release)} {
		require.NoError(t, os.WriteFile(filepath.Join(at, release+suffix), text, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(at, "list"), []byte(release+"\n"), 0o600))
	f, err := os.Create(filepath.Join(at, release+".zip"))
	require.NoError(t, err)
	defer f.Close()
	z := zip.NewWriter(f)
	require.NoError(t, filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == from {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || d.Name() == ".git" {
				return filepath.SkipDir // another module
			}
			return nil
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		w, err := z.Create(name + "@" + release + "/" + filepath.ToSlash(rel))
		if err == nil {
			_, err = io.Copy(w, strings.NewReader(string(b)))
		}
		return err
	}))
	require.NoError(t, z.Close())
}
