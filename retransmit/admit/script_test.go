package admit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/moldtape/moldtape/moldcast"
)

// TestScripts runs testdata. One script, one Admitter, one timeline. Commands:
//
//	new [client=R] [client-bytes=B] [loopback=R] [total=R] [total-bytes=B]
//	    [burst=D] [linger=D] [clients=N] [max-count=N] [allow=P,P…]
//	run       one line each: T FROM [SESSION] FIRST+COUNT [sent SIZE [of N]] [× N]; T is a duration on the timeline; prints the verdict; "sent"
//	          tells the Admitter of the answer, if the request was admitted
//	stats
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var a *Admitter
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				cfg := Config{}
				for _, arg := range d.CmdArgs {
					var err error
					v := arg.Vals[0]
					switch arg.Key {
					case "client":
						_, err = fmt.Sscan(v, &cfg.Client.Requests)
					case "client-bytes":
						_, err = fmt.Sscan(v, &cfg.Client.Bytes)
					case "loopback":
						_, err = fmt.Sscan(v, &cfg.Loopback.Requests)
					case "total":
						_, err = fmt.Sscan(v, &cfg.Total.Requests)
					case "total-bytes":
						_, err = fmt.Sscan(v, &cfg.Total.Bytes)
					case "burst":
						cfg.Burst, err = time.ParseDuration(v)
					case "linger":
						cfg.Linger, err = time.ParseDuration(v)
					case "clients":
						_, err = fmt.Sscan(v, &cfg.Clients)
					case "max-count":
						_, err = fmt.Sscan(v, &cfg.MaxCount)
					case "allow":
						for _, p := range strings.Split(v, "|") {
							cfg.Allow = append(cfg.Allow, netip.MustParsePrefix(p))
						}
					default:
						t.Fatalf("unknown argument %q", arg.Key)
					}
					if err != nil {
						t.Fatal(arg, err)
					}
				}
				var err error
				if a, err = New(cfg); err != nil {
					return err.Error() + "\n"
				}
				return ""
			case "run":
				var out strings.Builder
				for _, line := range strings.Split(d.Input, "\n") {
					runLine(t, a, line, &out)
				}
				return out.String()
			case "stats":
				s := a.Stats()
				var out strings.Builder
				for v, n := range s.Verdicts {
					if n > 0 {
						fmt.Fprintf(&out, "%v=%d ", Verdict(v), n)
					}
				}
				fmt.Fprintf(&out, "clients=%d replaced=%d shared=%d\n", s.Clients, s.Replaced, s.Shared)
				return out.String()
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

func runLine(t *testing.T, a *Admitter, line string, out *strings.Builder) {
	f := strings.Fields(line)
	at, err := time.ParseDuration(f[0])
	if err != nil {
		t.Fatal(err)
	}
	now := moldcast.Instant(at)
	from := netip.MustParseAddrPort(f[1])
	f = f[2:]
	r := moldcast.Request{Session: session("S")}
	if !strings.Contains(f[0], "+") {
		r.Session = session(f[0])
		f = f[1:]
	}
	r.First, r.Count = span(t, f[0])
	f = f[1:]
	size, times := 0, 1
	next := r.Range().Next
	if len(f) > 0 && f[0] == "sent" {
		fmt.Sscan(f[1], &size)
		f = f[2:]
	}
	if len(f) > 0 && f[0] == "of" {
		var n int
		fmt.Sscan(f[1], &n)
		next = r.First + moldcast.Seq(n)
		f = f[2:]
	}
	if len(f) > 0 && f[0] == "×" {
		fmt.Sscan(f[1], &times)
	}
	var counts [Verdicts]int
	var last moldcast.Range
	for range times {
		rng, v := a.Admit(now, from, r)
		counts[v]++
		if v == Admitted {
			last = rng
			if size > 0 {
				a.Answered(now, from, r, min(next, rng.Next), size)
			}
		}
	}
	fmt.Fprintf(out, "%v %v:", at, from)
	for v, n := range counts {
		if n == 0 {
			continue
		}
		fmt.Fprintf(out, " %v", Verdict(v))
		if Verdict(v) == Admitted {
			fmt.Fprintf(out, " %v", last)
		}
		if times > 1 {
			fmt.Fprintf(out, " × %d", n)
		}
	}
	out.WriteByte('\n')
}

func span(t *testing.T, s string) (moldcast.Seq, uint16) {
	var first uint64
	var n uint16
	if _, err := fmt.Sscanf(s, "%d+%d", &first, &n); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return moldcast.Seq(first), n
}

func session(name string) moldcast.Session {
	s, err := moldcast.ParseSession(name)
	if err != nil {
		panic(err)
	}
	return s
}
