package capture

import (
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

func loss(share float64, burst int) link {
	return link{Impair: mcast.Impair{Loss: share, Burst: burst}}
}

func disorder(depth int) link { return link{Impair: mcast.Impair{Reorder: 0.05, Depth: depth}} }

func scenarios() []scenario {
	good := []serving{{}}
	clean := link{}
	usual := scenario{may: may{requests: 1.1, surplus: 0.02, after: 100 * time.Millisecond, waiting: 8 << 10}}
	of := func(name string, tune func(*scenario)) scenario {
		x := usual
		x.name, x.servers = name, good
		tune(&x)
		return x
	}
	return []scenario{
		of("nothing", func(x *scenario) { x.lines = []link{clean, clean} }),
		of("loss 1 % of one line alone", func(x *scenario) { x.lines = []link{loss(0.01, 1)} }),
		of("loss 5 % of one line alone", func(x *scenario) { x.lines = []link{loss(0.05, 1)} }),
		of("loss 20 % of one line alone", func(x *scenario) { x.lines = []link{loss(0.2, 1)} }),
		of("loss 20 % of one of two", func(x *scenario) { x.lines = []link{loss(0.2, 1), clean} }),
		of("loss 20 % of both", func(x *scenario) { x.lines = []link{loss(0.2, 1), loss(0.2, 1)} }),
		of("bursts of 50 of one line alone", func(x *scenario) { x.lines, x.requests = []link{loss(0.1, 50)}, 2 }),
		of("bursts of 50 of both", func(x *scenario) { x.lines, x.requests = []link{loss(0.2, 50), loss(0.2, 50)}, 2 }),
		of("both lines are cut at once", func(x *scenario) {
			x.lines = []link{{down: []window{{0.3, 0.4}, {0.6, 0.601}}}, {down: []window{{0.3, 0.4}, {0.6, 0.601}}}}
			x.requests = 1.5
		}),
		of("half of the requests are lost", func(x *scenario) {
			x.lines, x.servers = []link{loss(0.05, 1)}, []serving{{deaf: 0.5}}
			x.requests, x.after = 2.5, 5*time.Second
		}),
		of("half of the answers are lost", func(x *scenario) {
			x.lines, x.servers = []link{loss(0.05, 1)}, []serving{{mute: 0.5}}
			x.requests, x.after = 2.5, 5*time.Second
		}),
		of("half of each, two servers, bursts", func(x *scenario) {
			x.lines, x.servers = []link{loss(0.05, 20)}, []serving{{deaf: 0.5, mute: 0.5}, {deaf: 0.5, mute: 0.5}}
			x.requests, x.after = 6, 10*time.Second
		}),
		of("one server of two is dead", func(x *scenario) {
			x.lines, x.servers = []link{loss(0.05, 1)}, []serving{{deaf: 1}, {}}
		}),
		of("duplicates", func(x *scenario) {
			x.lines = []link{{Impair: mcast.Impair{Duplicate: 0.3, Loss: 0.02}}, {Impair: mcast.Impair{Duplicate: 0.3, Loss: 0.02}}}
			x.servers, x.surplus = []serving{{twice: 0.5}}, 0.7
		}),
		of("disorder to depth 10", func(x *scenario) { x.lines, x.surplus = []link{disorder(10)}, 1 }),
		of("disorder to depth 100", func(x *scenario) { x.lines, x.surplus = []link{disorder(100)}, 1 }),
		of("disorder to depth 1000", func(x *scenario) { x.lines, x.surplus = []link{disorder(1000)}, 1 }),
		of("disorder to depth 1000 of one of two", func(x *scenario) { x.lines = []link{disorder(1000), clean} }),
		of("disorder to depth 100 of both, and nobody to ask", func(x *scenario) {
			x.lines, x.servers = []link{disorder(100), disorder(100)}, nil
			x.tune = func(c *Config) { c.Start = 1 }
		}),
		of("two framings, one behind", func(x *scenario) {
			x.lines = []link{{pack: 7, Impair: mcast.Impair{Loss: 0.05}}, {pack: 11, delay: 800 * time.Microsecond, Impair: mcast.Impair{Loss: 0.05}}}
		}),
		of("the wall clock is set", func(x *scenario) {
			x.lines = []link{loss(0.05, 1), loss(0.05, 1)}
			x.steps = []step{{0.2, time.Hour}, {0.4, -2 * time.Hour}, {0.5, -5 * time.Second}, {0.6, 5 * time.Second}, {0.8, 365 * 24 * time.Hour}}
			x.check = func(t *testing.T, w *world) {
				for _, l := range w.status.Lines {
					if l.Skew.P99 > 0.01 {
						t.Errorf("line %s: skew %+v", l.Line, l.Skew)
					}
				}
			}
		}),
		of("reads of the lines fail", func(x *scenario) {
			x.lines, x.deaf = []link{clean, clean}, []window{{0.2, 0.25}, {0.5, 0.51}}
			x.requests = 1.5
			x.check = func(t *testing.T, w *world) {
				if w.status.KernelDropped == 0 || w.ports[0].readErrors.Load() < 10 {
					t.Errorf("%d dropped, %d read errors", w.status.KernelDropped, w.ports[0].readErrors.Load())
				}
			}
		}),
		of("the socket of a line fails for good", func(x *scenario) { x.lines, x.dies = []link{loss(0.01, 1), clean}, 0.5 }),
		of("half of the requests are refused by the system", func(x *scenario) {
			x.lines, x.refused = []link{loss(0.05, 1)}, []window{{0.1, 0.9}}
			x.requests, x.after = 2.5, 5*time.Second
			x.check = func(t *testing.T, w *world) {
				if n := w.ports[1].refusals.Load(); n < 20 {
					t.Errorf("%d refusals", n)
				}
			}
		}),
		of("a line is silent for a while", func(x *scenario) {
			x.lines, x.slow = []link{{Impair: mcast.Impair{Loss: 0.02}, down: []window{{0.2, 0.8}}}, loss(0.02, 1)}, 10
			x.reason = ReasonLineSilent
		}),
		of("the server is silent for a while", func(x *scenario) {
			x.lines, x.servers, x.slow = []link{loss(0.02, 1)}, []serving{{silent: []window{{0.2, 0.8}}}}, 10
			x.requests = 80 // four a second for each gap
		}),
		of("sessions follow each other with both in flight", func(x *scenario) {
			x.lines, x.sessions = []link{loss(0.05, 1), {delay: 3 * time.Millisecond, Impair: mcast.Impair{Loss: 0.05}}}, 3
		}),
		of("sessions follow each other, and a line is far behind", func(x *scenario) {
			// What the first line loses is asked for: the second would bring it,
			// but later than a gap settles.
			x.lines, x.sessions = []link{loss(0.05, 1), {delay: 30 * time.Millisecond, Impair: mcast.Impair{Loss: 0.05}}}, 3
			x.aside = 0.012
		}),
		of("a restarted server has forgotten", func(x *scenario) {
			x.lines = []link{{pack: 10, down: []window{{0.3, 0.5}}}}
			x.servers = []serving{{restart: 0.4}}
			x.tune = func(c *Config) { c.NakBudget = 10 * time.Second }
			x.requests, x.after, x.waiting = 25, 20*time.Second, 64<<10 // answers wait too
			x.lost = func(w *world) moldcast.Range {
				first := w.seen[sess].Missing(moldcast.Range{First: 1, Next: w.n + 1})[0].First
				return moldcast.Range{First: first, Next: w.low}
			}
		}),
		of("a server lacks some of what is missing", func(x *scenario) {
			x.lines, x.servers = []link{{down: []window{{0.3, 0.5}}}}, []serving{{lacks: []window{{0.4003, 0.4103}}}}
			x.tune = func(c *Config) { c.NakBudget = 4 * time.Second }
			x.requests, x.after, x.waiting = 8, 10*time.Second, 64<<10
			x.lost = func(w *world) moldcast.Range { return w.messagesOf(x.servers[0].lacks[0]) }
		}),
		of("two servers lack different parts of what is missing", func(x *scenario) {
			x.lines = []link{{down: []window{{0.3, 0.5}}}}
			x.servers = []serving{{lacks: []window{{0.31, 0.3503}, {0.4, 0.4301}}}, {lacks: []window{{0.3503, 0.4}, {0.45, 0.4507}}}}
			x.requests, x.after, x.waiting = 8, 10*time.Second, 64<<10
		}),
		of("a server with a short ring begins anew", func(x *scenario) {
			x.lines, x.servers = []link{loss(0.02, 1)}, []serving{{ring: 1000, deaf: 0.2, restart: 0.5}}
			x.requests, x.after = 2, time.Second
		}),
		of("a peer has what the server forgot", func(x *scenario) {
			x.lines, x.servers, x.peer = []link{{down: []window{{0.3, 0.5}}}}, []serving{{ring: 200}}, true
			x.surplus = 0.2
		}),
		of("a peer alone", func(x *scenario) {
			x.lines, x.servers, x.peer = []link{loss(0.1, 30)}, nil, true
			x.surplus = 2 // each fetch begins a little early, and ends a little late
		}),
	}
}
