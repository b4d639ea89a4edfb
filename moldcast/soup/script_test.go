package soup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/moldtape/moldtape/moldcast"
)

// TestScripts runs testdata/script. One script, one machine, one timeline.
// Commands:
//
//	client [session=S] [seq=N] [user=U] [password=P] [timeout=MS]
//	server
//	run     one line each, T VERB ARG…; T is a duration on the timeline. Prints
//	        what came of it: events, "-> bytes" to be sent, errors.
//	          in "BYTES"     bytes arrive (a Go string literal)
//	          poll           Poll, then the next deadline
//	          accept S N | reject C | end | hole A B | gap A B | refuse TEXT | sent N | logout
func TestScripts(t *testing.T) {
	datadriven.Walk(t, filepath.Join("testdata", "script"), func(t *testing.T, path string) {
		var c *Client
		var s *Server
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "client":
				l := Login{Session: Blank}
				for _, a := range d.CmdArgs {
					switch v := a.Vals[0]; a.Key {
					case "session":
						l.Session = name(t, v)
					case "seq":
						n, _ := strconv.ParseUint(v, 10, 64)
						l.Seq = moldcast.Seq(n)
					case "user":
						l.User = v
					case "password":
						l.Password = v
					case "timeout":
						l.Timeout, _ = strconv.Atoi(v)
					}
				}
				c, s = NewClient(0, l), nil
				fmt.Fprintf(&out, "-> %q\n", c.Output(0))
			case "server":
				c, s = nil, NewServer(0)
			case "run":
				for line := range strings.Lines(d.Input) {
					step(t, &out, c, s, strings.TrimSpace(line))
				}
			}
			return out.String()
		})
	})
}

func name(t *testing.T, text string) moldcast.Session {
	t.Helper()
	s, err := moldcast.ParseSession(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func step(t *testing.T, out *strings.Builder, c *Client, s *Server, line string) {
	t.Helper()
	when, rest, _ := strings.Cut(line, " ")
	verb, arg, _ := strings.Cut(rest, " ")
	dur, err := time.ParseDuration(when)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	now := moldcast.Instant(dur)
	f := strings.Fields(arg)
	num := func(i int) moldcast.Seq {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return moldcast.Seq(n)
	}
	switch verb {
	case "in":
		b, err := strconv.Unquote(arg)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if c != nil {
			drive(out, c, now, []byte(b))
		} else {
			for in := []byte(b); len(in) > 0; {
				n, login, err := s.Receive(now, in)
				in = in[n:]
				if login != nil {
					fmt.Fprintf(out, "login %+v\n", *login)
				}
				if err != nil {
					fmt.Fprintf(out, "error %v\n", err)
					break
				}
			}
		}
	case "poll":
		var err error
		var d moldcast.Instant
		if c != nil {
			err, d = c.Poll(now), c.Deadline()
		} else {
			err, d = s.Poll(now), s.Deadline()
		}
		if err != nil {
			fmt.Fprintf(out, "error %v\n", err)
		} else {
			fmt.Fprintf(out, "next %v\n", time.Duration(d))
		}
	case "accept":
		s.Accept(name(t, f[0]), num(1))
	case "reject":
		s.Reject(Code(arg[0]))
	case "end":
		s.End()
	case "hole":
		s.Hole(moldcast.Range{First: num(0), Next: num(1) + 1})
	case "gap":
		s.Gap(moldcast.Range{First: num(0), Next: num(1) + 1})
	case "refuse":
		s.Refuse(arg)
	case "say":
		s.Say(arg)
	case "sent":
		s.Sent(now, int(num(0)))
	case "logout":
		c.Logout()
	default:
		t.Fatalf("%q", line)
	}
	var b []byte
	if c != nil {
		b = c.Output(now)
	} else {
		b = s.Output(now)
	}
	if len(b) > 0 {
		fmt.Fprintf(out, "-> %q\n", b)
	}
	if s != nil && s.Closing() {
		fmt.Fprintln(out, "closing")
	}
}

// drive gives b to c and prints what came, one message a line, so that it does
// not depend on how events gather them.
func drive(out *strings.Builder, c *Client, now moldcast.Instant, b []byte) error {
	for len(b) > 0 {
		n, events, err := c.Receive(now, b)
		b = b[n:]
		for _, e := range events {
			switch e.Kind {
			case Accepted:
				fmt.Fprintf(out, "accepted %v at %d\n", e.Session, e.First)
			case Data:
				for seq := e.First; e.Msgs.Len() > 0; seq++ {
					fmt.Fprintf(out, "%d %q\n", seq, e.Msgs.Next())
				}
			case Alive:
				fmt.Fprintln(out, "alive")
			case Hole:
				fmt.Fprintf(out, "hole [%d,%d)\n", e.Range.First, e.Range.Next)
			case Gap:
				fmt.Fprintf(out, "gap [%d,%d)\n", e.Range.First, e.Range.Next)
			case Debug:
				fmt.Fprintf(out, "debug %q\n", e.Text)
			case NoSnapshot:
				fmt.Fprintln(out, "no snapshot")
			case Snapshot:
				fmt.Fprintf(out, "snapshot at %d of %d bytes, %x\n", e.First, e.Size, e.Sum[:4])
			case SnapshotBytes:
				fmt.Fprintf(out, "snapshot %q\n", e.Bytes)
			case SnapshotDone:
				fmt.Fprintf(out, "snapshot done, next %d\n", e.First)
			case End:
				fmt.Fprintf(out, "end at %d\n", e.First)
			}
		}
		if err != nil {
			var r *RejectedError
			if !errors.As(err, &r) && !errors.Is(err, ErrProtocol) {
				fmt.Fprint(out, "untyped ")
			}
			fmt.Fprintf(out, "error %v\n", err)
			return err
		}
	}
	return nil
}
