package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Server is a program that says where it listens.
type Server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts argv and returns the first line that it prints.
func Start(argv []string) (*Server, string, error) {
	s := &Server{cmd: exec.Command(argv[0], argv[1:]...)}
	s.cmd.Stderr = os.Stderr
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, "", err
	}
	s.out = bufio.NewReader(out)
	line, err := s.out.ReadString('\n')
	if err != nil {
		_ = s.cmd.Wait()
		return nil, "", fmt.Errorf("%s: it did not say where it listens", strings.Join(argv, " "))
	}
	return s, strings.TrimSpace(line), nil
}

// Stop ends it and returns what it said at the end.
func (s *Server) Stop() (string, error) {
	_ = s.in.Close()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	rest, err := io.ReadAll(s.out)
	return string(rest), errors.Join(err, s.cmd.Wait())
}

// End closes its input alone, and returns the number that it said then.
func (s *Server) End() (int64, error) {
	_ = s.in.Close()
	rest, err := io.ReadAll(s.out)
	if err = errors.Join(err, s.cmd.Wait()); err != nil {
		return 0, err
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(rest)), 10, 64)
	return n, nil
}
