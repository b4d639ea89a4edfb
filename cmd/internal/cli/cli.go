// Package cli is moldtape's command line: one file a command. Names,
// defaults, outputs and exit codes are a contract with scripts.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit codes.
const (
	exitFault       = 1   // the work failed or found a fault
	exitUsage       = 2   // wrong usage or configuration
	exitInterrupted = 130 // cut short by the user
)

// exitError ends the process with a code; err may be nil when everything was
// said already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is a fault of the command line or of a configuration: exit 2, one
// line that names the flag and the accepted form.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// faultf is work that failed or found a fault: exit 1.
func faultf(format string, args ...any) error {
	return &exitError{code: exitFault, err: fmt.Errorf(format, args...)}
}

// errInterrupted is work that a signal cut short: exit 130.
var errInterrupted = &exitError{code: exitInterrupted}

// env is what every command shares: the streams, the logger and the flags of
// the root command. One a process run; nothing is global.
type env struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	logLevel  string
	logFormat string
	archive   string
	json      bool

	log *slog.Logger // set before RunE
}

// Main runs the command line and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out := &checkedWriter{w: stdout}
	e := &env{stdin: stdin, stdout: out, stderr: stderr, log: slog.New(slog.DiscardHandler)}
	root := newRoot(e)
	root.SetArgs(args)
	ctx, stop := interruptible(stderr)
	defer stop()
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.failed() // whatever became of the work, its result did not arrive
	}
	if err == nil {
		return 0
	}
	var x *exitError
	if !errors.As(err, &x) {
		x = &exitError{code: exitFault, err: err}
	}
	if x.err != nil {
		fmt.Fprintln(stderr, "moldtape: "+strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return x.code
}

// checkedWriter keeps the first error of writing, so that no command can end
// well whose output was lost. Safe for use by several goroutines.
type checkedWriter struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

func (c *checkedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if err != nil {
		c.mu.Lock()
		if c.err == nil {
			c.err = err
		}
		c.mu.Unlock()
	}
	return n, err
}

func (c *checkedWriter) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("stdout: %w", c.err)
}

// sameSignal is how soon after the first a signal is still the same one:
// timeout(1), and a shell that signals a group, deliver one twice.
const sameSignal = 100 * time.Millisecond

// interruptible is a context that the first SIGINT or SIGTERM cancels; the
// second ends the process at once.
func interruptible(stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	sig := make(chan os.Signal, 2)
	signal.Notify(sig, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var stopped atomic.Bool
	go func() {
		select {
		case <-sig:
		case <-done:
			return
		}
		cancel()
		first := time.Now()
		for {
			select {
			case <-sig:
			case <-done:
				return
			}
			if time.Since(first) > sameSignal {
				fmt.Fprintln(stderr, "moldtape: second signal: stopped at once")
				os.Exit(exitInterrupted)
			}
		}
	}()
	return ctx, func() {
		if stopped.CompareAndSwap(false, true) {
			signal.Stop(sig)
			close(done)
			cancel()
		}
	}
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:           "moldtape",
		Short:         "Record, serve and replay sequenced multicast market data (MoldUDP64)",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q; `moldtape --help` lists them", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return e.setLogger()
		},
	}
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	f := root.PersistentFlags()
	f.StringVar(&e.logLevel, "log-level", "info", "least level logged: debug, info, warn or error")
	f.StringVar(&e.logFormat, "log-format", "text", "text or json")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s: %v; see `%s --help`", c.Name(), err, c.CommandPath())
	})
	for _, add := range commands {
		root.AddCommand(add(e))
	}
	return root
}

// version is that of the module and the commit it was built from, as far as
// the build recorded them.
func version() string {
	i, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := i.Main.Version
	for _, s := range i.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v + " " + i.GoVersion
}

func (e *env) setLogger() error {
	var level slog.Level
	switch e.logLevel {
	case "debug", "info", "warn", "error":
		_ = level.UnmarshalText([]byte(e.logLevel))
	default:
		return usagef("--log-level %q: want debug, info, warn or error", e.logLevel)
	}
	switch {
	case e.logFormat == "json":
		e.log = slog.New(slog.NewJSONHandler(e.stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds}))
	case e.logFormat == "text" && isTerminal(e.stderr):
		e.log = slog.New(tint.NewTextHandler(e.stderr, &tint.Options{Level: level, ReplaceAttr: errorText}))
	case e.logFormat == "text":
		e.log = slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: errorText}))
	default:
		return usagef("--log-format %q: want text or json", e.logFormat)
	}
	return nil
}

// errorText gives an error in a text log as its message: some, such as those of
// the store, print a stack trace where a handler asks for everything.
func errorText(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}

// inSeconds gives a duration in a JSON log as every other one in JSON.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

// sessionArg is the argument of a command that takes one recorded session.
func sessionArg(command string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("%s: want one SESSION, like CHANNEL/SESSION; `moldtape sessions` lists them", command)
		}
		return nil
	}
}

// statusLine keeps a line on stderr, where that is a terminal, until ctx is
// done.
func (e *env) statusLine(ctx context.Context, line func() string) {
	if !isTerminal(e.stderr) {
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			fmt.Fprint(e.stderr, "\r\x1b[K")
			return
		case <-tick.C:
			fmt.Fprint(e.stderr, "\r"+line()+"\x1b[K")
		}
	}
}

// isTerminal reports whether w is a terminal: progress bars and colours go
// nowhere else.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// printJSON writes v as one line of JSON on stdout.
func (e *env) printJSON(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// addArchive adds --archive. Its value is read by archiveDir.
func (e *env) addArchive(c *cobra.Command) {
	c.Flags().StringVar(&e.archive, "archive", "", "archive `DIR` (default $MOLDTAPE_ARCHIVE, else ./archive)")
}

func (e *env) archiveDir() string {
	if e.archive != "" {
		return e.archive
	}
	if d := os.Getenv("MOLDTAPE_ARCHIVE"); d != "" {
		return d
	}
	return "archive"
}

// addJSON adds --json.
func (e *env) addJSON(c *cobra.Command, what string) {
	c.Flags().BoolVar(&e.json, "json", false, what)
}

// noArgs refuses positional arguments with exit 2.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument, got %q; see `%s --help`", c.Name(), args[0], c.CommandPath())
	}
	return nil
}

// ready is the event that every command prints on stdout once it receives on
// its sockets.
type ready struct {
	Event      string         `json:"event"` // "ready"
	Channels   []readyChannel `json:"channels,omitempty"`
	Retransmit string         `json:"retransmit,omitempty"`
	Recovery   string         `json:"recovery,omitempty"`
	HTTP       string         `json:"http,omitempty"`
	Ack        string         `json:"ack,omitempty"` // of publish
}

type readyChannel struct {
	Channel    string   `json:"channel"`
	Lines      []string `json:"lines"`
	Retransmit string   `json:"retransmit,omitempty"` // of this channel alone, as the next
	Recovery   string   `json:"recovery,omitempty"`
}
