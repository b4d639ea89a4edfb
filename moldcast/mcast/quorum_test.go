package mcast

import (
	"net/netip"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// It is hopeless where more archives than may be missing miss what has left the
// ring, and given up once none gets further.
func TestGateWatch(t *testing.T) {
	const limit = 10 * time.Second
	second := moldcast.Instant(time.Second)
	at := func(state moldcast.ArchiveState, first, next moldcast.Seq) moldcast.ArchiveView {
		return moldcast.ArchiveView{Addr: netip.MustParseAddr("10.0.0.1"), State: state, Held: moldcast.Range{First: first, Next: next}}
	}
	whole, late, other, unproven := moldcast.ArchiveWhole, moldcast.ArchiveLate, moldcast.ArchiveOther, moldcast.ArchiveUnproven
	for name, c := range map[string]struct {
		k        int
		archives []moldcast.ArchiveView
		ring     moldcast.Seq
		hopeless bool
		lost     int
	}{
		"all within the ring":             {2, []moldcast.ArchiveView{at(whole, 1, 101), at(whole, 1, 60)}, 60, false, 0},
		"one beyond it":                   {2, []moldcast.ArchiveView{at(whole, 1, 101), at(whole, 1, 60)}, 61, true, 1},
		"one may be":                      {2, []moldcast.ArchiveView{at(whole, 1, 101), at(whole, 1, 60), at(whole, 1, 90)}, 61, false, 1},
		"nobody yet":                      {2, nil, 61, false, 0},
		"one is not there":                {2, []moldcast.ArchiveView{at(whole, 1, 101)}, 61, false, 0},
		"one is not there, one is lost":   {2, []moldcast.ArchiveView{at(whole, 1, 5)}, 61, true, 1},
		"late, and the ring has it all":   {1, []moldcast.ArchiveView{at(late, 50, 101)}, 1, false, 0},
		"late":                            {1, []moldcast.ArchiveView{at(late, 50, 101)}, 2, true, 1},
		"another stream":                  {1, []moldcast.ArchiveView{at(other, 1, 101)}, 1, true, 0},
		"it may yet show that it is ours": {1, []moldcast.ArchiveView{at(unproven, 1, 50)}, 61, false, 0},
	} {
		var g gateWatch
		st := QuorumStatus{K: c.k, Sent: 101, Archives: c.archives}
		g.look(second, st, 1, c.ring)
		if g.hopeless != c.hopeless || len(g.lost) != c.lost {
			t.Errorf("%s: hopeless %v, %v", name, g.hopeless, g.lost)
		}
		if !c.hopeless {
			if g.expired(1000*second, limit) {
				t.Errorf("%s: given up", name)
			}
			continue
		}
		if g.expired(second*10, limit) || !g.expired(second*11, limit) || g.expired(second*1000, 0) {
			t.Errorf("%s: given up at another time", name)
		}
		st.Archives[0].Held.Next++ // another archive brings it something
		if g.look(second*10, st, 1, c.ring); g.hopeless && (g.expired(second*19, limit) || !g.expired(second*20, limit)) {
			t.Errorf("%s: it gets further, and is given up", name)
		}
	}
}
