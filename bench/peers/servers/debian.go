package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// find returns the path of a program: in PATH, at one of the places where the distribution keeps
// it, or in the cache, into which its package is unpacked if need be.
func find(ctx context.Context, o Options, program, pkg string, places ...string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return filepath.EvalSymlinks(path)
	}
	places = append(places, "/usr/bin/"+program)
	look := func() (string, bool) {
		for _, root := range []string{"/", unpacked(o)} {
			for _, place := range places {
				if found, _ := filepath.Glob(filepath.Join(root, place)); len(found) > 0 {
					return found[len(found)-1], true
				}
			}
		}
		return "", false
	}
	if path, ok := look(); ok {
		return path, nil
	}
	if !o.Install {
		return "", fmt.Errorf("%w: %s: install the Debian package %s, or allow unpacking it into %s", ErrAbsent, program, pkg, o.Cache)
	}
	if err := unpack(ctx, o, pkg); err != nil {
		return "", fmt.Errorf("%w: %s: install the Debian package %s: %w", ErrAbsent, program, pkg, err)
	}
	if path, ok := look(); ok {
		return path, nil
	}
	return "", fmt.Errorf("%w: the Debian package %s has no %s", ErrAbsent, pkg, program)
}

func unpacked(o Options) string { return filepath.Join(o.Cache, "unpacked") }

// unpack fetches a package and those that it needs and this machine lacks, and unpacks them into
// the cache. It needs no root: nothing is installed.
func unpack(ctx context.Context, o Options, pkg string) error {
	dir := filepath.Join(o.Cache, "packages")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(unpacked(o), 0o755)); err != nil {
		return err
	}
	names, err := missing(ctx, pkg)
	if err != nil && os.Getuid() == 0 { // perhaps there are no lists of packages yet
		_ = exec.CommandContext(ctx, "apt-get", "update", "-q").Run()
		names, err = missing(ctx, pkg)
	}
	if err != nil {
		return err
	}
	fetch := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q", "-o", "APT::Sandbox::User=root"}, names...)...)
	fetch.Dir = dir
	if out, err := fetch.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download %s: %w: %s", strings.Join(names, " "), err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	for _, file := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", file, unpacked(o)).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg-deb -x %s: %w: %s", file, err, out)
		}
	}
	return err
}

// missing lists the packages that installing one would fetch.
func missing(ctx context.Context, pkg string) (names []string, err error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "apt-get", "install", "--print-uris", "-qq", "-y", "--no-install-recommends", "--reinstall", pkg)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("apt-get install --print-uris %s: %w: %s", pkg, err, stderr.String())
	}
	for line := range strings.Lines(string(out)) { // 'URI' NAME_VERSION_ARCH.deb SIZE HASH
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasSuffix(fields[1], ".deb") {
			name, _, _ := strings.Cut(fields[1], "_")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("apt-get names nothing to fetch for %s", pkg)
	}
	return names, nil
}

// withLibraries lets a program find the libraries that were unpacked beside it.
func withLibraries(cmd *exec.Cmd, o Options) {
	if !strings.HasPrefix(cmd.Path, unpacked(o)) {
		return
	}
	dirs, _ := filepath.Glob(filepath.Join(unpacked(o), "usr/lib/*-linux-gnu*"))
	more, _ := filepath.Glob(filepath.Join(unpacked(o), "lib/*-linux-gnu*"))
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(append(dirs, more...), ":"))
}
