//go:build unix

package examples

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// Each service ends by itself when it is told to by SIGTERM, as Kubernetes and systemd do, or by
// SIGINT, and leaves a store that was closed.
func TestServicesEndWhenTold(t *testing.T) {
	kafkatest.EmbeddedOnly(t)
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/", "./...").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, group := range map[string]string{
		"atmostonce": "", "balances": "", "changes": "", "cloudevents": "", "outbox": "payments", "transactional": "",
	} {
		if group == "" {
			group = name
		}
		t.Run(name, func(t *testing.T) {
			b := kafkatest.Start(t, kafkatest.Options{})
			topic := kafkatest.Name(t)
			b.CreateNamed(t, topic, 1, nil)
			b.CreateNamed(t, topic+"-dlt", 1, nil)
			topicFlag := "-topic"
			if name == "outbox" {
				topicFlag = "-payments"
			}
			args := []string{"-brokers", strings.Join(b.Addrs(), ","), topicFlag, topic}
			if name == "balances" || name == "changes" {
				args = append(args, "-listen", "127.0.0.1:0")
			}
			dir := filepath.Join(t.TempDir(), "store")
			for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
				b.Produce(t, &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v")})
				p := start(t, exec.Command(filepath.Join(bin, name), append(args, "-dir", dir)...))
				b.UntilCommitted(t, group, topic, 0, int64(i+1))
				p.end(t, signal)
				wasClosed(t, filepath.Join(dir, "hapax-clean"))
			}
		})
	}
	t.Run("edge", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "store")
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			cmd := exec.Command(filepath.Join(bin, "edge"), "-dir", dir)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			p := start(t, cmd)
			if _, err := in.Write([]byte("a 2026-03-04T12:00:00Z\n")); err != nil {
				t.Fatal(err)
			}
			for !strings.HasSuffix(p.printed(), " a\n") {
				time.Sleep(time.Millisecond)
			}
			p.end(t, signal)
			wasClosed(t, filepath.Join(dir, "CLEAN"))
		}
	})
}

// A replay that waits for a broker that does not answer ends, too. It is not complete, so it fails.
func TestReplayEndsWhenTold(t *testing.T) {
	replay := filepath.Join(t.TempDir(), "replay")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", replay, "./replay").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	broker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	p := start(t, exec.Command(replay, "-brokers", broker.Addr().String(), "-letters", "t-dlt"))
	conn, err := broker.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	if !p.cmd.ProcessState.Exited() || p.cmd.ProcessState.Success() || !strings.HasPrefix(p.printed(), "0 letters sent back") {
		t.Errorf("%v\n%s", p.cmd.ProcessState, p.printed())
	}
}

// A process of an example.
type process struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer // of both outputs; guarded by mu
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd}
	cmd.Stdout, cmd.Stderr = p, p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return p
}

// end sends a signal and waits until the process has ended. Its status must be 0.
func (p *process) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("after %v: %v\n%s", signal, err, p.printed())
	}
}

// wasClosed checks that a store has the record of a clean close.
func wasClosed(t *testing.T, record string) {
	t.Helper()
	if _, err := os.Stat(record); err != nil {
		t.Errorf("the store was not closed: %v", err)
	}
}
