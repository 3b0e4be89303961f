// Package servers finds the servers that Hapax is compared with, and runs each in a separate
// directory, reachable only through a Unix socket. It needs Linux.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// ErrAbsent is returned if a program is not installed.
var ErrAbsent = errors.New("the server is not installed")

// find returns the path of a program, in PATH or in the directories of the distribution.
func find(program, pkg string, places ...string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil // Redis depends on the name by which it was started
	}
	for _, place := range places {
		if found, _ := filepath.Glob(place); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", fmt.Errorf("%w: %s: install the Debian package %s", ErrAbsent, program, pkg)
}

// Options are the directories in which servers are kept.
type Options struct {
	// Cache is a directory for built programs; it may be kept for the next run.
	Cache string
	// Dir is a new directory for the data of a server.
	Dir string
}

// A Server is a process with data on disk.
type Server struct {
	// Socket is the path to which clients connect: the socket (Redis) or its directory (Postgres).
	Socket string
	// Data is the directory with its files.
	Data string

	sockets string // the directory of the socket
	start   func() *exec.Cmd
	answers func(ctx context.Context) error
	cmd     *exec.Cmd
	said    output
	gone    chan struct{}
}

// patience is how long a server may take to answer, on a busy machine and after a crash.
const patience = 2 * time.Minute

// Start starts the server, also after Kill, and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	s.cmd = s.start()
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	inGroup(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", filepath.Base(s.cmd.Path), err)
	}
	gone, cmd := make(chan struct{}), s.cmd
	s.gone = gone
	go func() {
		_ = cmd.Wait() // gone notices the end
		close(gone)
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := s.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-gone:
			return fmt.Errorf("%s ended while it started: %s", filepath.Base(cmd.Path), s.said.last())
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("%s does not answer: %w: %s", filepath.Base(cmd.Path), err, s.said.last())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the server and its children with SIGKILL.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	killGroup(s.cmd)
	<-s.gone
	s.cmd = nil
}

// Remove kills the server and removes its data and its socket.
func (s *Server) Remove() error {
	s.Kill()
	return errors.Join(os.RemoveAll(s.Data), os.RemoveAll(s.sockets))
}

// PID is the id of the server's first process, 0 if it does not run.
func (s *Server) PID() int {
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// CPUSeconds is the processor time of the server since it was started.
func (s *Server) CPUSeconds() (float64, error) {
	if s.cmd == nil {
		return 0, nil
	}
	return CPUSeconds(s.cmd.Process.Pid)
}

// output keeps the last lines that a server has written.
type output struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, p...)
	if over := len(o.buf) - 4096; over > 0 {
		o.buf = o.buf[over:]
	}
	return len(p), nil
}

func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(bytes.TrimSpace(o.buf))
}
