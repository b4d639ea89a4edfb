package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/importer"
	"github.com/moldtape/moldtape/moldcast"
)

// streamSet is what the first reading of the captures found.
type streamSet struct {
	survey *capfile.Survey
	target map[*capfile.Flow]target
}

type target struct {
	channel string
	group   string
	answer  bool // unicast beside a multicast line: retransmissions
}

// survey reads every capture once to find its streams. What is wrong with a
// file is said in the second reading.
func (r *importRun) survey(ctx context.Context) (*streamSet, error) {
	set := &streamSet{
		survey: capfile.NewSurvey(capfile.SurveyOptions{Only: r.filter, Protocol: r.protocol}),
		target: make(map[*capfile.Flow]target),
	}
	flowsOf := make(map[*input]map[netip.AddrPort]bool)
	damaged := make(map[*input]bool)
	for i, in := range r.inputs {
		if !isCapture(r.kinds[i]) {
			continue
		}
		flows := make(map[netip.AddrPort]bool)
		flowsOf[in] = flows
		var last [2]netip.AddrPort // of which nearly all packets are
		err := r.packets(ctx, in, func(p *capfile.Packet) error {
			set.survey.Add(p)
			if p.Dst != last[0] && p.Dst != last[1] && len(flows) < 1<<14 {
				flows[p.Dst], last = true, [2]netip.AddrPort{p.Dst, last[0]}
			}
			return nil
		})
		var cf *capfile.FormatError
		if errors.As(err, &cf) {
			damaged[in] = true
		} else if err != nil {
			return nil, err
		}
	}
	set.survey.Finish()
	for _, g := range set.survey.Channels() {
		multicast := false
		for _, f := range g {
			multicast = multicast || f.Dst.Addr().IsMulticast()
		}
		name := r.flags.channel
		for _, f := range g {
			if name == "" && (f.Dst.Addr().IsMulticast() || !multicast) {
				name = channelOf(f.Dst)
			}
		}
		for _, f := range g {
			set.target[f] = target{channel: name, group: f.Dst.String(), answer: multicast && !f.Dst.Addr().IsMulticast()}
		}
	}
	for _, f := range set.survey.Flows() {
		if f.Protocol == 0 {
			if len(r.sum.Refused) < maxFaultsListed {
				r.sum.Refused = append(r.sum.Refused, importRefused{Group: f.Dst.String(), Datagrams: f.Datagrams, Reason: f.Why})
			}
			continue
		}
		s := importStream{Group: f.Dst.String(), Protocol: f.Protocol.String(), Channel: set.target[f].channel, Datagrams: f.Datagrams}
		for _, n := range f.Sessions {
			s.Sessions = append(s.Sessions, n.String())
		}
		r.sum.Streams = append(r.sum.Streams, s)
	}
	// A file that has no stream at all is a fault, said in one line.
	for _, in := range r.inputs {
		if flowsOf[in] == nil {
			continue
		}
		r.noStream(in, set.survey, flowsOf[in], damaged[in])
	}
	return set, nil
}

// channelOf is a group and port as a channel: an IPv6 address without its
// brackets, which a channel cannot have.
func channelOf(a netip.AddrPort) string {
	if a.Addr().Is4() {
		return a.String()
	}
	return strings.NewReplacer("[", "", "]", "", "%", "-").Replace(a.String())
}

func (r *importRun) noStream(in *input, s *capfile.Survey, flows map[netip.AddrPort]bool, damaged bool) {
	var why []string
	for _, f := range s.Flows() {
		if !flows[f.Dst] {
			continue
		}
		if f.Protocol != 0 {
			return
		}
		why = append(why, fmt.Sprintf("%v: %s", f.Dst, f.Why))
	}
	line := in.name + ": no MoldUDP64 or IEX-TP stream"
	switch {
	case len(why) == 0 && damaged:
		return // what is wrong with the file says enough
	case len(why) == 0 && len(r.filter) > 0:
		line += " to " + strings.Join(r.flags.filter, ", ")
	case len(why) == 0:
		line += ": it holds no UDP over IP"
	default:
		line += " (" + strings.Join(why[:min(len(why), 3)], "; ")
		if len(why) > 3 {
			line += fmt.Sprintf("; and %d flows more", len(why)-3)
		}
		line += ")"
		if len(r.filter) == 0 {
			line += "; --filter G:P takes a flow all the same"
		}
	}
	r.say(line)
}

// packets reads one capture file.
func (r *importRun) packets(ctx context.Context, in *input, each func(*capfile.Packet) error) error {
	raw, err := in.rewind(r.tick)
	if err != nil {
		return err
	}
	x, err := capfile.NewReader(raw, capfile.Options{Checksums: true})
	if err != nil {
		return err
	}
	defer x.Close()
	var p capfile.Packet
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		err := x.Read(&p)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(&p); err != nil {
			return err
		}
	}
}

// capture imports one capture file.
func (r *importRun) capture(ctx context.Context, in *input, sum *importFile, set *streamSet) error {
	type open struct {
		flow    *capfile.Flow
		session moldcast.Session
		s       *importer.Session
		line    uint8
		answer  bool
	}
	var last open
	var scratch []byte
	err := r.packets(ctx, in, func(p *capfile.Packet) error {
		flow, fault := set.survey.Judge(p)
		if flow == nil {
			return nil
		}
		bad := func(reason string) error {
			r.fault(importFault{File: in.name, Position: p.Pos, Frame: p.Frame, Reason: reason})
			return nil
		}
		if fault != capfile.Whole {
			return bad(fault.String())
		}
		pk, err := flow.Protocol.Parse(p.Payload, &scratch)
		if err != nil {
			return bad("malformed: " + err.Error())
		}
		if r.session != nil && pk.Session != *r.session {
			return nil
		}
		known := last.s != nil && pk.Session == last.session
		if !known && len(r.filter) == 0 && !capfile.Plausible(pk.Session) {
			name := pk.Session
			return bad(fmt.Sprintf("implausible session %x", name[:]))
		}
		if n := tooLong(pk.Msgs); n > 0 {
			return bad(fmt.Sprintf("message of %d bytes, the longest is %d", n, moldcast.MaxMessage))
		}
		sum.Packets++
		if !known || flow != last.flow {
			t := set.target[flow]
			s, err := r.im.Session(t.channel, pk.Session)
			if err != nil {
				return err
			}
			last = open{flow, pk.Session, s, moldcast.AnswerLine, t.answer}
			if !t.answer {
				last.line = s.Line(t.group)
			}
		}
		stamp := p.Stamp
		if stamp == 0 {
			stamp = moldcast.StampOf(in.time)
		}
		if pk.Kind != moldcast.Data {
			return last.s.Mark(moldcast.Mark{Kind: pk.Kind, Next: pk.First, Stamp: stamp, Line: last.line})
		}
		piece := moldcast.Piece{First: pk.First, Msgs: pk.Msgs, Time: stamp, Heard: stamp, Line: last.line}
		if last.answer {
			piece.Flags, piece.Time = moldcast.Repaired, last.s.Between(pk.First, stamp)
		}
		return r.add(last.s, piece, in, p.Pos, p.Frame)
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	var cf *capfile.FormatError
	if errors.As(err, &cf) {
		return r.readFault(in, err)
	}
	return err
}

// tooLong is the length of the first message that no IPv4 datagram can carry;
// 0 where there is none.
func tooLong(m moldcast.Messages) int {
	if len(m.Framed()) <= moldcast.MaxMessage+moldcast.LengthSize {
		return 0
	}
	for m.Len() > 0 {
		if d := m.Next(); len(d) > moldcast.MaxMessage {
			return len(d)
		}
	}
	return 0
}
