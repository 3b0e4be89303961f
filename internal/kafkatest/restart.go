package kafkatest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// script starts and stops the real broker.
const script = ".ci/kafka/broker"

// Kill makes the broker unavailable: the real one with SIGKILL, a durable embedded one by cutting
// all connections. A real broker that this module has not started skips the test. Revive must
// follow.
func (b *cluster) Kill(t testing.TB) {
	t.Helper()
	if b.real {
		b.ours(t)
		t.Cleanup(func() { run(t, "up") }) // for later tests
		run(t, "kill")
		return
	}
	if b.dir == "" {
		t.Fatal("an embedded broker can be killed if it is Durable")
	}
	b.embedded().Close()
}

// Revive starts a killed broker again, with its data, at the same addresses.
func (b *cluster) Revive(t testing.TB) {
	t.Helper()
	if b.real {
		run(t, "up")
		return
	}
	o := append(b.settings(), kfake.Ports(ports(t, b.addrs)...))
	Until(t, "the broker's old ports", func() bool {
		fake, err := kfake.NewCluster(o...)
		if err != nil {
			return false // another process may have the port temporarily
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.fake = fake
		return true
	})
}

// ours skips the test unless `make kafka-up` started the real broker.
func (b *cluster) ours(t testing.TB) {
	t.Helper()
	out, err := command(t, "address").Output()
	if err != nil || strings.TrimSpace(string(out)) != strings.Join(b.addrs, ",") {
		t.Skipf("the broker at %s was not started by make kafka-up: it cannot be killed from here", strings.Join(b.addrs, ","))
	}
}

func run(t testing.TB, verb string) {
	t.Helper()
	if out, err := command(t, verb).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", script, verb, err, out)
	}
}

func command(t testing.TB, verb string) *exec.Cmd {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, filepath.FromSlash(script))
		if _, err := os.Stat(path); err == nil {
			return exec.Command(path, verb)
		} else if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			t.Skipf("no %s above the working directory: the broker cannot be killed from here", script)
		}
	}
}

func ports(t testing.TB, addrs []string) (ports []int) {
	t.Helper()
	for _, addr := range addrs {
		_, port, err := net.SplitHostPort(addr)
		n, err2 := strconv.Atoi(port)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		ports = append(ports, n)
	}
	return ports
}
