package arbiter

import (
	"net/netip"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// held is a packet that is not believed by itself: it waits for a second one
// that fits it.
type held struct {
	session moldcast.Session
	first   moldcast.Seq
	name    bool // the session is not taken up; else the packet jumps absurdly
	until   moldcast.Instant
	stamp   moldcast.Stamp
	line    int
	src     netip.Addr
	data    []byte
}

// failing is a session that Output.Open refused.
type failing struct {
	at   moldcast.Instant // not tried again before
	wait moldcast.Instant
}

// fits reports whether a packet at q confirms one at h: it lies between h and
// h plus the greatest jump.
func (a *Arbiter) fits(h, q moldcast.Seq) bool {
	return h <= q && uint64(q-h) <= a.cfg.Limits.Jump
}

// hold keeps a copy of a packet until then, at the cost of the one held
// longest.
func (a *Arbiter) hold(now, until moldcast.Instant, stamp moldcast.Stamp, line int, src netip.Addr, p moldcast.Packet, d []byte, name bool) {
	a.expireHeld(now)
	if len(a.held) >= a.cfg.Limits.HeldPackets {
		a.unconfirmed(&a.held[0])
		a.held = slices.Delete(a.held, 0, 1)
	}
	a.held = append(a.held, held{
		session: p.Session, first: p.First, name: name, until: until,
		stamp: stamp, line: line, src: src, data: slices.Clone(d),
	})
}

// unconfirmed counts a held packet that is given up.
func (a *Arbiter) unconfirmed(h *held) {
	if h.name {
		a.c.WrongSession++
	} else {
		a.c.Implausible++
	}
}

func (a *Arbiter) giveUp(which func(*held) bool) {
	a.held = slices.DeleteFunc(a.held, func(h held) bool {
		if !which(&h) {
			return false
		}
		a.unconfirmed(&h)
		return true
	})
}

func (a *Arbiter) expireHeld(now moldcast.Instant) {
	if len(a.held) > 0 {
		a.giveUp(func(h *held) bool { return h.until <= now })
	}
}

// release takes out the held packets that which names, lowest sequence first.
func (a *Arbiter) release(which func(*held) bool) []held {
	var out []held
	a.held = slices.DeleteFunc(a.held, func(h held) bool {
		if !which(&h) {
			return false
		}
		out = append(out, h)
		return true
	})
	slices.SortStableFunc(out, func(x, y held) int {
		switch {
		case x.first < y.first:
			return -1
		case x.first > y.first:
			return 1
		}
		return 0
	})
	return out
}

// parsed is the packet of h, which parsed when it was held.
func (a *Arbiter) parsed(h *held) moldcast.Packet {
	p, _ := a.parse(h.data)
	return p
}

// belief is whether a packet can be taken by itself.
type belief uint8

const (
	plausible   belief = iota
	doubtful           // a second one must fit it
	implausible        // not to be believed
)

// believe judges the distance of p from what is known of s. A doubtful packet
// is to be confirmed before until.
func (a *Arbiter) believe(now moldcast.Instant, s *Session, p moldcast.Packet) (b belief, until moldcast.Instant) {
	l := &a.cfg.Limits
	until = now + moldcast.Instant(l.JumpWait)
	if head := s.m.Head(); p.First > head {
		if uint64(p.First-head) > l.Jump {
			return doubtful, until
		}
		return plausible, 0
	}
	// A heartbeat below what was heard is nothing special. Messages below the
	// first one wanted move that down.
	if first := s.m.First(); p.Kind == moldcast.Data && p.First < first && uint64(first-p.First) > l.Jump {
		if end := s.opened + moldcast.Instant(l.StartWindow); s.live && now < end {
			return doubtful, min(until, end)
		}
		return implausible, 0
	}
	return plausible, 0
}

// offer takes a packet of a line, of an open session.
func (a *Arbiter) offer(now moldcast.Instant, stamp moldcast.Stamp, line int, src netip.Addr, s *Session, p moldcast.Packet, d []byte) {
	b, until := a.believe(now, s, p)
	if b == implausible {
		a.c.Implausible++
		return
	}
	if len(a.held) > 0 {
		a.expireHeld(now)
		confirmed := a.release(func(h *held) bool {
			return !h.name && h.session == s.name && a.fits(h.first, p.First)
		})
		for i := range confirmed {
			h := &confirmed[i]
			a.admit(kept{now: now, stamp: h.stamp, data: h.data}, h.line, h.src, a.sessions[s.name], a.parsed(h))
		}
		if len(confirmed) > 0 {
			b = plausible
			s = a.sessions[s.name] // they may have begun a take
		}
	}
	if b == doubtful {
		a.hold(now, until, stamp, line, src, p, d, false)
		return
	}
	a.admit(kept{now: now, stamp: stamp, data: d}, line, src, s, p)
}

// unknown takes a packet of a line, of a session that is not open.
func (a *Arbiter) unknown(now moldcast.Instant, stamp moldcast.Stamp, line int, src netip.Addr, p moldcast.Packet, d []byte) {
	if a.named != nil && !a.named[p.Session] {
		a.c.WrongSession++
		return
	}
	start := p.First
	var first []held
	if f := a.failing[p.Session]; f != nil {
		if now < f.at {
			a.refused(p)
			return
		}
	} else {
		// Two that are far from each other do not confirm the name: either may
		// be the forged one. A third will tell.
		fit := func(h *held) bool {
			return h.name && h.session == p.Session && (a.fits(h.first, p.First) || a.fits(p.First, h.first))
		}
		if !slices.ContainsFunc(a.held, func(h held) bool { return fit(&h) }) {
			a.hold(now, gap.Never, stamp, line, src, p, d, true)
			return
		}
		if !a.mayOpen(now, p.Session) {
			a.giveUp(func(h *held) bool { return h.name && h.session == p.Session })
			a.c.WrongSession++
			return
		}
		for _, h := range a.held {
			if fit(&h) {
				start = min(start, h.first)
			}
		}
		first = a.release(func(h *held) bool { return h.name && h.session == p.Session })
	}
	s := a.open(now, p.Session, start)
	if s == nil {
		for i := range first {
			a.refused(a.parsed(&first[i]))
		}
		a.refused(p)
		return
	}
	for i := range first {
		h := &first[i]
		a.offer(now, h.stamp, h.line, h.src, a.sessions[s.name], a.parsed(h), h.data)
	}
	a.offer(now, stamp, line, src, a.sessions[s.name], p, d)
}

// refused counts a packet of a session that could not be opened.
func (a *Arbiter) refused(p moldcast.Packet) {
	a.c.Packets++
	a.c.QueueDropped += uint64(p.Msgs.Len())
}

// mayOpen reports whether the bounds allow another session, and takes note of
// the name.
func (a *Arbiter) mayOpen(now moldcast.Instant, name moldcast.Session) bool {
	l := &a.cfg.Limits
	if len(a.order)+len(a.failing) >= l.Sessions && !a.evict(now) {
		return false
	}
	if a.named[name] {
		return true
	}
	a.names = slices.DeleteFunc(a.names, func(at moldcast.Instant) bool {
		return now-at >= moldcast.Instant(l.SessionsWindow)
	})
	if len(a.names) >= l.NewSessions {
		return false
	}
	a.names = append(a.names, now)
	return true
}

func (a *Arbiter) newSession(now moldcast.Instant, name moldcast.Session) *Session {
	s := &Session{
		name: name, sparse: a.cfg.Gap.Sparse, m: gap.New(a.cfg.Gap), known: newHashes(a.cfg.Limits.Compared),
		opened: now, heard: now, low: make([]low, a.cfg.Lines), lines: make([]lineState, a.cfg.Lines),
	}
	if a.cfg.Lines > 1 {
		s.arrived.ring = make([]arrival, maxArrivals)
	}
	return s
}

// open takes up a session that begins at start, unless the archive holds some
// of it. Nil: the output failed.
func (a *Arbiter) open(now moldcast.Instant, name moldcast.Session, start moldcast.Seq) *Session {
	s := a.newSession(now, name)
	h, err := a.out.Open(s)
	if err != nil {
		a.c.OpenFailures++
		f := a.failing[name]
		if f == nil {
			f = &failing{wait: moldcast.Instant(a.cfg.Limits.OpenRetry)}
			a.failing[name] = f
		}
		f.at = now + f.wait
		f.wait = min(2*f.wait, moldcast.Instant(a.cfg.Limits.OpenRetryMax))
		return nil
	}
	delete(a.failing, name)
	if s.sparse {
		h.Holes = nil
	}
	switch {
	case h.First != 0:
		ranges := make([]moldcast.Range, 0, len(h.Holes))
		for _, hole := range h.Holes {
			s.missing.hold(hole)
			ranges = append(ranges, hole.Range)
		}
		s.m.Resume(h.First, h.Head, ranges)
		if len(ranges) > s.m.Stats().Ranges {
			s.prune()
		}
		if h.HeadTime != 0 {
			s.missing.top = point{h.Head - 1, h.HeadTime}
		}
		s.high, s.resumed, s.floor = h.Head, true, h.Floor
		s.hasEnd, s.end = h.Ended && h.End >= h.Head, h.End
		s.ends, s.endAt = 2, now // the archive vouches for it
	case a.cfg.Start == Beginning:
		s.m.Start(start)
		if start > 1 {
			s.m.Extend(1)
			s.missing.extend(1, start)
		}
	default:
		s.m.Start(start)
		s.live = true
	}
	a.sessions[name] = s
	a.order = append(a.order, s)
	a.last = s
	a.taken = true
	return s
}

// evict forgets the ended session that was silent longest, if any ended.
func (a *Arbiter) evict(now moldcast.Instant) bool {
	var oldest *Session
	for _, s := range a.order {
		if s.ended && len(s.wait.bySeq) == 0 && s.parked == 0 && (oldest == nil || s.heard < oldest.heard) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	a.close(now, oldest)
	return true
}

// forget closes the sessions that are silent, and ended or superseded.
func (a *Arbiter) forget(now moldcast.Instant) {
	for i := 0; i < len(a.order); {
		s := a.order[i]
		if len(s.wait.bySeq) > 0 || s.parked > 0 || now-s.heard < moldcast.Instant(a.cfg.Limits.Grace) {
			i++
			continue
		}
		by := a.successor(s)
		switch {
		case s.ended:
		case by != nil:
			a.out.Superseded(s, by)
		default:
			i++
			continue
		}
		a.close(now, s)
	}
}

// successor is the session that took the place of s, which did not end: on
// every line that brought s one that began after s fell silent was heard last.
func (a *Arbiter) successor(s *Session) (by *Session) {
	for line, on := range a.on {
		if s.lines[line].Packets == 0 {
			continue
		}
		if on == nil || on == s || on.opened < s.heard {
			return nil
		}
		by = on
	}
	return by
}

func (a *Arbiter) close(now moldcast.Instant, s *Session) {
	a.fold(now, s)
	delete(a.sessions, s.name)
	a.order = slices.DeleteFunc(a.order, func(o *Session) bool { return o == s })
	if a.last == s {
		a.last = nil
	}
	for line, on := range a.on {
		if on == s {
			a.on[line] = nil
		}
	}
	a.out.Close(s)
}
