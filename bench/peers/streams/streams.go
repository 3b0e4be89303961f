// Package streams builds the Kafka Streams application of the comparison, which is written in Java.
package streams

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

//go:embed pom.xml jars.sha256 src/*.java
var sources embed.FS

// Build compiles the application into the cache, with the jars that Maven fetches, and returns its
// class path. An application that is already in the cache is not built again. The error is
// servers.ErrAbsent on a machine without a JDK, or without Maven and the jars.
func Build(ctx context.Context, o servers.Options) (classPath string, err error) {
	if err := needJava(ctx); err != nil {
		return "", err
	}
	dir, err := filepath.Abs(filepath.Join(o.Cache, "streams"))
	if err != nil {
		return "", err
	}
	jars, err := once(dir, "jars", "[pj]*", func(from, to string) error {
		if _, err := exec.LookPath("mvn"); err != nil {
			return fmt.Errorf("%w: Maven, which fetches the jars of Kafka Streams: install the Debian package maven", servers.ErrAbsent)
		}
		if err := output(exec.CommandContext(ctx, "mvn", "-q", "-B", "-ntp", "--strict-checksums", "-f", filepath.Join(from, "pom.xml"),
			"dependency:copy-dependencies", "-DoutputDirectory="+to)); err != nil {
			return err
		}
		return checkJars(to, filepath.Join(from, "jars.sha256"))
	})
	if err != nil {
		return "", err
	}
	jars = filepath.Join(jars, "*")
	classes, err := once(dir, "classes", "src/*.java", func(from, to string) error {
		files, err := filepath.Glob(filepath.Join(from, "src", "*.java"))
		if err != nil {
			return err
		}
		return output(exec.CommandContext(ctx, "javac", append([]string{"-d", to, "-cp", jars}, files...)...))
	})
	return classes + string(os.PathListSeparator) + jars, err
}

// checkJars returns an error unless the files in a directory are exactly those of a list of sha256sum.
func checkJars(dir, list string) error {
	want, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(dir) // in the order of their names, as in the list
	if err != nil {
		return err
	}
	var got strings.Builder
	for _, file := range files {
		b, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(&got, "%x  %s\n", sha256.Sum256(b), file.Name())
	}
	if got.String() != string(want) {
		return fmt.Errorf("the jars of Kafka Streams are not those of bench/peers/streams/jars.sha256, but\n%s", &got)
	}
	return nil
}

// oldestJava is the oldest version of Java that Kafka's brokers support.
const oldestJava = 17

var javacVersion = regexp.MustCompile(`^javac (\d+)`)

func needJava(ctx context.Context) error {
	const remedy = "install the Debian package default-jdk-headless"
	if _, err := exec.LookPath("java"); err != nil {
		return fmt.Errorf("%w: Java, for Kafka Streams: %s", servers.ErrAbsent, remedy)
	}
	out, err := exec.CommandContext(ctx, "javac", "-version").Output()
	if err != nil {
		return fmt.Errorf("%w: javac, for Kafka Streams: %s: %w", servers.ErrAbsent, remedy, err)
	}
	if m := javacVersion.FindSubmatch(out); m != nil {
		if v, _ := strconv.Atoi(string(m[1])); v >= oldestJava {
			return nil
		}
	}
	return fmt.Errorf("%w: Java %d or newer, for Kafka Streams; here is %.100s: %s", servers.ErrAbsent, oldestJava, out, remedy)
}

// once returns a directory in dir whose name ends in the hash of the matching sources. If there is
// no such directory, it calls build with a directory that has the sources and another one to fill.
func once(dir, name, match string, build func(from, to string) error) (path string, err error) {
	hash := sha256.New()
	files, err := fs.Glob(sources, match)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		b, err := sources.ReadFile(file)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", file, len(b), b)
	}
	path = filepath.Join(dir, name+"-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(dir, "part-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	from, to := filepath.Join(part, "from"), filepath.Join(part, "to")
	if err := errors.Join(os.CopyFS(from, sources), os.Mkdir(to, 0o755), build(from, to)); err != nil {
		return "", err
	}
	if err := os.Rename(to, path); err != nil && !errors.Is(err, fs.ErrExist) { // another process has made it
		return "", err
	}
	return path, nil
}

// output runs a command. Its error contains the output of the command.
func output(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.4000s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}
