package store

import "github.com/moldtape/moldtape/moldcast"

// fewRuns is up to how many runs that lie out of order are put in one by one.
const fewRuns = 16

// insertRuns puts the runs of a block into x.runs, both in order, in one pass
// from the end: a block that fills many gaps has as many runs.
func (x *index) insertRuns(add []runRef) {
	if len(add) == 0 {
		return
	}
	i := len(x.runs) - 1
	x.runs = append(x.runs, add...)
	for k, j := len(x.runs)-1, len(add)-1; j >= 0; k-- {
		if i >= 0 && x.runs[i].r.Next > add[j].r.First {
			x.runs[k] = x.runs[i]
			i--
		} else {
			x.runs[k] = add[j]
			j--
		}
	}
}

// addRuns is addRun of each of rs, which are in order, in one pass where there
// are many. REQUIRES: mu.
func (s *session) addRuns(rs []moldcast.Range, g *segment) {
	n := len(s.runs)
	if len(rs) <= fewRuns || n == 0 || s.runs[n-1].r.First < rs[0].First {
		for _, r := range rs {
			s.addRun(r, g)
		}
		return
	}
	at := s.runAfter(rs[0].First)
	if at > 0 {
		at-- // it may end where the first begins
	}
	old := s.runs[at:]
	out := make([]segRun, at, n+len(rs))
	copy(out, s.runs)
	put := func(x segRun) {
		if k := len(out) - 1; k >= 0 && out[k].seg == x.seg && out[k].r.Next == x.r.First {
			out[k].r.Next = x.r.Next
			return
		}
		out = append(out, x)
	}
	for len(rs) > 0 || len(old) > 0 {
		if len(rs) == 0 || len(old) > 0 && old[0].r.First < rs[0].First {
			put(old[0])
			old = old[1:]
		} else {
			put(segRun{rs[0], g})
			rs = rs[1:]
		}
	}
	s.runs = out
}
