package main

import (
	"archive/zip"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	module  = "github.com/quicksilver-rpc/quicksilver"
	version = "v0.1.0"
)

// TestFirstProgram checks that the first program of README.md, pasted into an empty module that
// gets the library as users do, builds and runs. The library is this checkout, published to a proxy
// of the test's own; its requirements are read from the module cache, where they are downloaded to if they are missing.
func TestFirstProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	proxy, mods, user := filepath.Join(dir, "proxy"), filepath.Join(dir, "mods"), filepath.Join(dir, "user")
	publish(t, filepath.Join(proxy, filepath.FromSlash(module), "@v"))
	require.NoError(t, os.Mkdir(user, 0o777))
	shown := block.FindStringSubmatch(readme(t))
	require.NotNil(t, shown, "README.md shows no program")
	require.NoError(t, os.WriteFile(filepath.Join(user, "main.go"), []byte(shown[1]), 0o666))

	// The workspace may select newer versions than go.mod requires, so a new cache lacks these.
	goCommand(t, root, []string{"GOWORK=off"}, "mod", "download")
	cached := strings.TrimSpace(goCommand(t, root, nil, "env", "GOMODCACHE"))
	env := []string{
		"GOWORK=off", "GOTOOLCHAIN=local", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOMODCACHE=" + mods,
		"GOPROXY=" + fileURL(proxy) + "," + fileURL(filepath.Join(cached, "cache", "download")),
		// Without the names of folders in what is compiled the build cache has the library in the
		// next run.
		"GOFLAGS=-mod=mod -modcacherw -trimpath",
	}
	goCommand(t, user, env, "mod", "init", "example.com/hello")
	goCommand(t, user, env, "get", module+"@"+version)
	require.Equal(t, "hello, Ada\n", goCommand(t, user, env, "run", "."))
}

// TestModules checks that users of the library do not get the requirements of the tool.
func TestModules(t *testing.T) {
	t.Parallel()
	env := []string{"GOWORK=off"}
	require.NotContains(t, goCommand(t, root, env, "list", "-m", "all"), "mpb")
	tool, err := os.ReadFile(filepath.Join(root, "cmd/qs/go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(tool), "mpb", "the tool's progress bars come from elsewhere now: name what else only the tool needs")
}

// goCommand runs the go command in dir and returns its output.
func goCommand(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	defer stop()
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var output strings.Builder
	c.Stderr = &output
	out, err := c.Output()
	require.NoError(t, err, "go %s\n%s", strings.Join(args, " "), &output)
	return string(out)
}

func fileURL(path string) string {
	path = filepath.ToSlash(path)
	return "file:///" + strings.TrimPrefix(path, "/")
}

// publish writes the three files of a version that the go command asks a proxy for.
func publish(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o777))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, version+".mod"), mod, 0o666))
	info := `{"Version":"` + version + `"}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, version+".info"), []byte(info), 0o666))
	file, err := os.Create(filepath.Join(dir, version+".zip"))
	require.NoError(t, err)
	z := zip.NewWriter(file)
	require.NoError(t, zipModule(z, os.DirFS(root)))
	require.NoError(t, z.Close())
	require.NoError(t, file.Close())
}

// zipModule writes what users get: the files of the module without those of the modules inside of it.
func zipModule(z *zip.Writer, tree fs.FS) error {
	return fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if _, err := fs.Stat(tree, name+"/go.mod"); name != "." && (d.Name()[0] == '.' || err == nil) {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular() || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: module + "@" + version + "/" + name})
		if err != nil {
			return err
		}
		r, err := tree.Open(name)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(w, r)
		return err
	})
}
