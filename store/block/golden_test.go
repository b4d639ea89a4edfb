package block

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/moldtape/moldtape/moldcast"
)

// TestGolden holds the format still. testdata/build has what an Encoder makes
// of given pieces, stored as they are: its bytes never change within a
// version. testdata/decode has blocks and streams of records as some version
// wrote them, compressed too: what they hold is read for ever. Only additions to decode are right;
// `go test -run Golden -rewrite` writes expected outputs.
func TestGolden(t *testing.T) {
	second := newSecondReader(t)
	e, d := map[string]*Encoder{}, mustDecoder(t, DecoderOptions{Verify: true})
	for l, name := range levels {
		e[name] = mustEncoder(t, EncoderOptions{Level: l})
	}
	var got Block
	datadriven.Walk(t, "testdata/golden", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			second.t = t
			switch td.Cmd {
			case "build":
				b := buildScript(t, td.Input)
				codec := "stored"
				td.MaybeScanArgs(t, "codec", &codec)
				header, body := encode(t, e[codec], b, EncodeOptions{Patch: td.HasArg("patch")})
				h := decode(t, d, header, body, &got)
				second.agree(header, body, h, &got)
				return "header " + hexLines(header) + "body " + hexLines(body)
			case "decode":
				header, body := parseGolden(t, td.Input)
				h, err := ParseHeader(header)
				if err == nil {
					err = d.Decode(h, body, &got)
				}
				if err != nil {
					return err.Error() + "\n"
				}
				second.agree(header, body, h, &got)
				return dump(h, &got)
			case "stream":
				_, d := mustStream(t)
				out := ""
				for line := range strings.Lines(td.Input) {
					record, err := hex.DecodeString(strings.TrimSpace(line))
					if err == nil {
						err = d.Decode(record, &got)
					}
					out += "record of " + got.Session().String() + "\n" + dumpContent(&got)
					if err != nil {
						out += err.Error() + "\n"
					}
				}
				return out
			}
			return "unknown command"
		})
	})
}

// buildScript reads lines of
//
//	piece FIRST TIME [heard=STAMP] [line=N] [flags=N] "message"…
//	mark heartbeat|end NEXT STAMP [line=N]
//	log ID BEFORE LOST [last=1]
//	heard STAMP FIRST COUNT [line=N] [flags=N]
//
// where "x"*N repeats a message's text.
func buildScript(t *testing.T, script string) *Builder {
	b := NewBuilder(testSession)
	for line := range strings.Lines(script) {
		f := strings.Fields(line)
		opt := map[string]int64{}
		var msgs []string
		var num []uint64
		for _, w := range f[1:] {
			if text, ok := strings.CutPrefix(w, `"`); ok {
				text, times, repeat := strings.Cut(text, `"*`)
				n := 1
				if repeat {
					n, _ = strconv.Atoi(times)
				}
				msgs = append(msgs, strings.Repeat(strings.TrimSuffix(text, `"`), n))
			} else if k, v, ok := strings.Cut(w, "="); ok {
				opt[k], _ = strconv.ParseInt(v, 10, 64)
			} else if n, err := strconv.ParseUint(w, 10, 64); err == nil {
				num = append(num, n)
			}
		}
		if f[0] == "mark" {
			m := moldcast.Mark{Kind: moldcast.Heartbeat, Next: moldcast.Seq(num[0]), Stamp: moldcast.Stamp(num[1]), Line: uint8(opt["line"])}
			if f[1] == "end" {
				m.Kind = moldcast.End
			}
			if err := b.Mark(m); err != nil {
				t.Fatal(err)
			}
			continue
		}
		switch f[0] {
		case "log":
			if err := b.BeginLog(LogPart{ID: moldcast.Stamp(num[0]), Before: num[1], Lost: num[2], Last: opt["last"] == 1}); err != nil {
				t.Fatal(err)
			}
			continue
		case "heard":
			if err := b.Heard(moldcast.Heard{Stamp: moldcast.Stamp(num[0]), First: moldcast.Seq(num[1]), Count: uint16(num[2]), Line: uint8(opt["line"]), Flags: moldcast.HeardFlags(opt["flags"])}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		p := piece(moldcast.Seq(num[0]), moldcast.Stamp(num[1]), msgs...)
		if v, ok := opt["heard"]; ok {
			p.Heard = moldcast.Stamp(v)
		}
		p.Line, p.Flags = uint8(opt["line"]), moldcast.PieceFlags(opt["flags"])
		mustAppend(t, b, p)
	}
	return b
}

func hexLines(b []byte) string {
	var out strings.Builder
	for ; len(b) > 32; b = b[32:] {
		fmt.Fprintf(&out, "%x\n", b[:32])
	}
	fmt.Fprintf(&out, "%x\n", b)
	return out.String()
}

func parseGolden(t testing.TB, text string) (header, body []byte) {
	text = strings.TrimPrefix(text, "header ")
	h, b, ok := strings.Cut(strings.ReplaceAll(text, "\n", ""), "body ")
	header, err1 := hex.DecodeString(h)
	body, err2 := hex.DecodeString(b)
	if !ok || err1 != nil || err2 != nil {
		t.Fatalf("no golden block: %v %v", err1, err2)
	}
	return header, body
}

func dump(h Header, b *Block) string {
	var out strings.Builder
	fmt.Fprintf(&out, "session %v patch %v codec %v rows %d body %d\n", h.Session, h.Patch, h.Codec, h.RawLen, h.StoredLen)
	fmt.Fprintf(&out, "messages %d packets %d times %d..%d\n", h.Messages, h.Packets, h.MinTime, h.MaxTime)
	for i, r := range h.Runs {
		fmt.Fprintf(&out, "run %v %+v\n", r, h.Times[i])
	}
	if h.Marks > 0 {
		fmt.Fprintf(&out, "marks %d at %d..%d ended %v at %d\n", h.Marks, h.MarkMin, h.MarkMax, h.Ended, h.End)
	}
	fmt.Fprintf(&out, "digest %x\n", h.Digest())
	return out.String() + dumpContent(b)
}

func dumpContent(b *Block) string {
	var out strings.Builder
	for i := range b.Pieces() {
		p := b.PieceAt(i)
		fmt.Fprintf(&out, "piece %v time %d heard %+d line %d flags %d", p.Range(), p.Time, p.Heard-p.Time, p.Line, p.Flags)
		for m := p.Msgs; m.Len() > 0; {
			d := m.Next()
			if len(d) > 40 {
				fmt.Fprintf(&out, " %q…(%d)", d[:16], len(d))
				continue
			}
			fmt.Fprintf(&out, " %q", d)
		}
		out.WriteByte('\n')
	}
	for _, m := range b.Marks() {
		fmt.Fprintf(&out, "mark %v next %d at %d line %d\n", m.Kind, m.Next, m.Stamp, m.Line)
	}
	for i := range b.LogParts() {
		p := b.LogPart(i)
		fmt.Fprintf(&out, "log %d before %d heard %d lost %d from %d to %d lines %d last %v\n", p.ID, p.Before, p.Heard, p.Lost, p.From, p.To, p.Lines, p.Last)
		for line := range p.Lines {
			for _, h := range b.HeardOn(i, line) {
				fmt.Fprintf(&out, "heard at %d line %d: %d count %d flags %d\n", h.Stamp, h.Line, h.First, h.Count, h.Flags)
			}
		}
	}
	return out.String()
}
