package capfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	maxFlows      = 1 << 14 // that a survey tells apart
	maxSessions   = 1 << 10 // of a flow
	maxSamples    = 1 << 10 // messages of a session whose hash is kept, to compare lines
	sampleAll     = 256     // the first so many are all kept
	sampleEvery   = 64      // then those whose sequence is a multiple of this
	tolerateShare = 10      // one in so many may be wrong in a flow that is taken
)

// Flow is what a file sends to one address and port, and what a Survey makes
// of it.
type Flow struct {
	Dst       netip.AddrPort
	Protocol  Protocol // 0: no stream that is known; Why says the reason
	Why       string
	Datagrams int64
	Sessions  []moldcast.Session // in order of appearance, at most 1024
	TrustSums bool               // its UDP checksums are mostly right, so that a wrong one means damage

	sumGood, sumBad, ipBad int64
	faulty                 int64
	tried                  [2]tried
}

// tried is how a flow fares when read as one protocol.
type tried struct {
	valid, malformed, implausible int64
	why                           string // of the first malformed
	binary                        moldcast.Session
	last                          *seen // what came last
	lastName                      moldcast.Session
	sessions                      map[moldcast.Session]*seen
	order                         []moldcast.Session
	overflow                      int64
	beyond                        [2]seen // sessions beyond those
}

// seen samples the messages of a session.
type seen struct {
	n      int
	binary bool // its name is not plausible
	sample map[moldcast.Seq]uint64
}

// SurveyOptions of a Survey.
type SurveyOptions struct {
	// Only names the flows that are looked at; none: all. A flow that is named
	// is taken where any of its datagrams is framed right, however its
	// sessions look.
	Only []netip.AddrPort

	// Protocol narrows to one; 0: all.
	Protocol Protocol
}

// Survey finds the streams among the datagrams of one or more files. Add every
// datagram, then Finish. Memory is bounded by the number of flows and sessions
// it tells apart. It owns its flows.
type Survey struct {
	o        SurveyOptions
	flows    map[netip.AddrPort]*Flow
	order    []*Flow
	recent   [2]*Flow // newest first
	seed     maphash.Seed
	scratch  []byte
	overflow int64

	ipGood, ipBad, sumGood, sumBad int64
	trustIP                        bool
}

// NewSurvey starts a survey.
func NewSurvey(o SurveyOptions) *Survey {
	return &Survey{o: o, flows: make(map[netip.AddrPort]*Flow), seed: maphash.MakeSeed()}
}

// Add looks at one datagram, read with Options.Checksums.
func (s *Survey) Add(p *Packet) {
	if p.Fault == BadIPSum {
		s.ipBad++
	} else if p.Dst.IsValid() {
		s.ipGood++
	}
	if p.Dst.Port() == 0 || len(s.o.Only) > 0 && !slices.Contains(s.o.Only, p.Dst) {
		return
	}
	f := s.flow(p.Dst)
	if f == nil {
		if len(s.flows) == maxFlows {
			s.overflow++
			return
		}
		f = &Flow{Dst: p.Dst}
		s.flows[p.Dst] = f
		s.order = append(s.order, f)
	}
	f.Datagrams++
	switch p.Fault {
	case Whole:
		f.sumGood++
		s.sumGood++
	case BadUDPSum:
		f.sumBad++
		s.sumBad++
		if !mostly(f.sumBad, f.sumGood) {
			return // damaged: says nothing of the flow
		}
	case BadIPSum:
		f.ipBad++
		if !mostly(s.ipBad, s.ipGood) {
			return
		}
	default:
		f.faulty++
		return
	}
	for i := range f.tried {
		if proto := Protocol(i + 1); s.o.Protocol == 0 || s.o.Protocol == proto {
			s.try(&f.tried[i], proto, p.Payload)
		}
	}
}

// flow is the flow to dst, nil where there is none. Nearly all packets are of
// one of two lines.
func (s *Survey) flow(dst netip.AddrPort) *Flow {
	r := &s.recent
	if f := r[0]; f != nil && f.Dst == dst {
		return f
	}
	f := r[1]
	if f == nil || f.Dst != dst {
		if f = s.flows[dst]; f == nil {
			return nil
		}
	}
	r[0], r[1] = f, r[0]
	return f
}

// mostly: so many are bad that they are how the file was made, not damage.
func mostly(bad, good int64) bool { return bad*tolerateShare > bad+good }

func (s *Survey) try(t *tried, proto Protocol, b []byte) {
	if proto == IEXTP && t.why != "" && !hasIEX(b) { // of most flows every packet
		t.malformed++
		return
	}
	p, err := proto.Parse(b, &s.scratch)
	if err != nil {
		t.malformed++
		if t.why == "" {
			t.why = explain(proto, b, err)
		}
		return
	}
	t.valid++
	x := t.last
	if x == nil || p.Session != t.lastName {
		x = t.session(p.Session)
		t.last, t.lastName = x, p.Session
	}
	if x.binary {
		if t.implausible == 0 {
			t.binary = p.Session
		}
		t.implausible++
	}
	if x.sample == nil {
		t.overflow++
		return
	}
	if len(x.sample) >= maxSamples {
		return
	}
	seq := p.First
	if x.n >= sampleAll {
		if next := (seq + sampleEvery - 1) / sampleEvery * sampleEvery; next < seq || next >= p.Range().Next {
			x.n += p.Msgs.Len()
			return
		}
	}
	for m := p.Msgs; m.Len() > 0; seq++ {
		d := m.Next()
		if x.n < sampleAll || seq%sampleEvery == 0 {
			if _, ok := x.sample[seq]; !ok {
				x.sample[seq] = maphash.Bytes(s.seed, d)
			}
		}
		x.n++
	}
}

// session is what was seen of a session; without a sample where there are too
// many to tell apart.
func (t *tried) session(name moldcast.Session) *seen {
	x := t.sessions[name]
	if x != nil {
		return x
	}
	if len(t.sessions) == maxSessions {
		if Plausible(name) {
			return &t.beyond[0]
		}
		t.beyond[1].binary = true
		return &t.beyond[1]
	}
	x = &seen{binary: !Plausible(name), sample: make(map[moldcast.Seq]uint64)}
	if t.sessions == nil {
		t.sessions = make(map[moldcast.Session]*seen)
	}
	t.sessions[name] = x
	t.order = append(t.order, name)
	return x
}

// Plausible: a session name of printable characters, padded with spaces or
// NULs; or all NULs. MoldUDP64 1.00 calls it alphanumeric.
func Plausible(s moldcast.Session) bool {
	name := bytes.TrimRight(s[:], "\x00")
	for _, c := range name {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// explain says why a datagram is not of the protocol.
func explain(proto Protocol, b []byte, err error) string {
	if proto != MoldUDP64 {
		return err.Error()
	}
	if err == moldcast.ErrTruncated {
		if len(b) == moldcast.RequestSize {
			return "20 bytes with a count and no messages, as a request has"
		}
		if littleEndian(b) {
			return "its integers are little-endian, as in an older MoldUDP"
		}
	}
	return err.Error()
}

// littleEndian: the datagram would be a downstream packet if its integers were
// little-endian.
func littleEndian(b []byte) bool {
	le := binary.LittleEndian
	if len(b) < moldcast.HeaderSize {
		return false
	}
	n := int(le.Uint16(b[18:]))
	for b = b[moldcast.HeaderSize:]; n > 0; n-- {
		if len(b) < 2 || int(le.Uint16(b))+2 > len(b) {
			return false
		}
		b = b[int(le.Uint16(b))+2:]
	}
	return len(b) == 0
}

// Finish judges every flow. Call it once, after the last Add.
func (s *Survey) Finish() {
	s.trustIP = !mostly(s.ipBad, s.ipGood)
	for _, f := range s.order {
		f.TrustSums = !mostly(f.sumBad, f.sumGood) ||
			// A few wrong ones to an address of their own, in a file whose
			// checksums are right: it is the address that is damaged.
			f.sumGood == 0 && f.sumBad < 4 && !mostly(s.sumBad, s.sumGood)
		f.judge(s)
	}
}

func (f *Flow) judge(s *Survey) {
	if f.ipBad == f.Datagrams && s.trustIP || f.sumBad == f.Datagrams && f.TrustSums {
		f.Why = "every checksum is wrong, while those of other flows are right"
		return
	}
	forced := len(s.o.Only) > 0
	for i := range f.tried {
		t := &f.tried[i]
		proto := Protocol(i + 1)
		if t.valid+t.malformed == 0 {
			continue
		}
		if why := t.refuse(f, forced); why == "" {
			f.Protocol, f.Sessions, f.Why = proto, t.order, ""
			return
		} else if f.Why == "" {
			f.Why = why
		}
	}
	if f.Why == "" {
		f.Why = "no datagram is whole"
	}
}

func (t *tried) refuse(f *Flow, forced bool) string {
	total := t.valid + t.malformed
	switch {
	case t.valid == 0:
		return t.why
	case forced:
		return ""
	case t.malformed*tolerateShare > total:
		return fmt.Sprintf("%d of %d datagrams are framed otherwise (%s)", t.malformed, total, t.why)
	case t.implausible*tolerateShare > t.valid:
		return fmt.Sprintf("session %x is binary, as in MEMX Memoir", t.binary[:])
	case t.overflow > 0 || len(t.order) > 16 && int64(len(t.order))*4 > t.valid:
		return fmt.Sprintf("%d session names in %d datagrams", len(t.order), t.valid)
	}
	return ""
}

// Flows is every flow, in order of appearance.
func (s *Survey) Flows() []*Flow { return s.order }

// Flow is the flow to dst; nil where there was none.
func (s *Survey) Flow(dst netip.AddrPort) *Flow { return s.flow(dst) }

// Overflow counts the datagrams of flows beyond the 16384 that are told apart.
func (s *Survey) Overflow() int64 { return s.overflow }

// Judge says of a datagram, after Finish, which stream it belongs to (nil: to
// none) and what is wrong with it. A checksum that is wrong throughout a file
// or a flow, as a capture on the sending machine has it, is no fault. A damaged
// datagram belongs to a stream also where only its address fits.
func (s *Survey) Judge(p *Packet) (*Flow, Fault) {
	f := s.flow(p.Dst)
	if f != nil && f.Protocol == 0 {
		f = nil
	}
	switch p.Fault {
	case Whole:
		return f, Whole
	case BadIPSum:
		if !s.trustIP {
			return f, Whole
		}
	case BadUDPSum:
		if f != nil && !f.TrustSums {
			return f, Whole
		}
		if f == nil && mostly(s.sumBad, s.sumGood) {
			return nil, Whole
		}
	}
	if f == nil {
		f = s.near(p)
	}
	return f, p.Fault
}

// near is a stream that a damaged datagram may be of: one with the same
// address, or the first where not even that is known.
func (s *Survey) near(p *Packet) *Flow {
	if p.Dst.Port() != 0 && p.Fault != BadIPSum && p.Fault != BadUDPSum {
		return nil // its destination is good, and another
	}
	for _, f := range s.order {
		if f.Protocol == 0 {
			continue
		}
		if !p.Dst.IsValid() || f.Dst.Addr() == p.Dst.Addr() || p.Fault == BadIPSum && f.Dst.Port() == p.Dst.Port() {
			return f
		}
	}
	return nil
}

// Channels groups the flows that carry streams: flows are lines of one channel
// when they share a session and, where they hold the same sequences of it,
// mostly agree. Each group and the list are in order of appearance.
func (s *Survey) Channels() [][]*Flow {
	var groups [][]*Flow
next:
	for _, f := range s.order {
		if f.Protocol == 0 {
			continue
		}
		for i, g := range groups {
			if slices.ContainsFunc(g, func(o *Flow) bool { return sameChannel(f, o) }) {
				groups[i] = append(g, f)
				continue next
			}
		}
		groups = append(groups, []*Flow{f})
	}
	return groups
}

func sameChannel(a, b *Flow) bool {
	if a.Protocol != b.Protocol {
		return false
	}
	shared := false
	for name, x := range a.tried[a.Protocol-1].sessions {
		y := b.tried[b.Protocol-1].sessions[name]
		if y == nil {
			continue
		}
		common, agree := 0, 0
		for seq, h := range x.sample {
			if g, ok := y.sample[seq]; ok {
				common++
				if g == h {
					agree++
				}
			}
		}
		if common >= 8 && agree*2 < common {
			return false
		}
		shared = true
	}
	return shared
}
