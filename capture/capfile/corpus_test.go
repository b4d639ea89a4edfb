package capfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// corpus is the folder of real files.
func corpus(t testing.TB) string {
	dir := os.Getenv("MOLDTAPE_CORPUS")
	if dir == "" {
		t.Skip("MOLDTAPE_CORPUS is not set")
	}
	return dir
}

func corpusFile(t testing.TB, name string) []byte {
	b, err := os.ReadFile(filepath.Join(corpus(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The sessions, sequences and counts are what tshark shows.
func TestCorpusSingles(t *testing.T) {
	nasdaq, ise, ntp := "Nasdaq.Equities.TotalView.Itch.v5.0/", "Ise.OrderComboFeed.v1.1/", "Ntp.Itch.v1.05/"
	want := map[string]string{
		nasdaq + "OrderDeleteMessage.pcap":                 "000010059B 14757722+1",
		nasdaq + "AddOrderNoMpidAttributionMessage.pcap":   "000010059B 14757721+1",
		nasdaq + "OrderReplaceMessage.pcap":                "000010059B 14757701+1",
		nasdaq + "Multiple.Packets.pcap":                   "000010059B 14764496+1 19009117+38",
		ise + "ComplexStrategyAuctionMessage.pcap":         "000008367I 344498+1",
		ise + "ComplexStrategyOrderOnBookMessage.pcap":     "000008367I 330074+1",
		ise + "StrategyOpenClosedMessage.pcap":             "000008367I 329712+1",
		ntp + "AddOrderMessage.pcap":                       "1567326030 3775770+1",
		ntp + "AuctionOrderExecutedMessage.pcap":           "1567326030 3537964+1",
		ntp + "CombinationSymbolDirectoryMessage.pcap":     "1567326030 3474042+1",
		ntp + "EquilibriumPriceMessage.pcap":               "1567326030 3513103+1",
		ntp + "Heartbeat.pcap":                             "1567326030 3466217+0",
		ntp + "ImpliedOrderDeletedMessage.pcap":            "1567326030 3559979+1",
		ntp + "OpenHighLowLastTradeAdjustmentMessage.pcap": "1567326030 3495568+1",
		ntp + "OrderBookStateMessage.pcap":                 "1567326030 3511158+1",
		ntp + "OrderExecutedMessage.pcap":                  "1567326030 3530514+1",
		ntp + "Seconds.pcap":                               "1567326030 3524316+2",
		ntp + "TradeExecutedMessage.pcap":                  "1567326030 3781390+8",
	}
	files, err := filepath.Glob(filepath.Join(corpus(t), "mold64-singles", "*", "*.pcap"))
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d files, want %d, %v", len(files), len(want), err)
	}
	for name, w := range want {
		all, err := readAll(t, bytes.NewReader(corpusFile(t, "mold64-singles/"+name)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := surveyOf(all, SurveyOptions{})
		if g := s.Channels(); len(g) != 1 || len(g[0]) != 1 {
			t.Errorf("%s: %d channels", name, len(g))
		}
		got := ""
		for _, p := range all {
			f, fault := s.Judge(&p)
			m, err := f.Protocol.Parse(p.Payload, nil)
			if fault != Whole || err != nil {
				t.Fatalf("%s: %v, %v", name, fault, err)
			}
			if got == "" {
				got = m.Session.String()
			}
			got += fmt.Sprintf(" %d+%d", m.First, m.Msgs.Len())
		}
		if got != w {
			t.Errorf("%s: %s, want %s", name, got, w)
		}
	}
}

func TestCorpusOthers(t *testing.T) {
	for name, why := range map[string]string{
		"old-moldudp-32bit.pcap": "little-endian",
		"memx-memoir.pcap":       "session 02125553453164e486c8 is binary",
	} {
		all, err := readAll(t, bytes.NewReader(corpusFile(t, "not-mold64/"+name)))
		s := surveyOf(all, SurveyOptions{})
		if err != nil || len(s.Channels()) != 0 || len(s.Flows()) != 1 || !strings.Contains(s.Flows()[0].Why, why) {
			t.Errorf("%s: %v, %+v", name, err, s.Flows()[0])
		}
	}
	all, err := readAll(t, bytes.NewReader(corpusFile(t, "iex-tops-2017/TOPS16.pcap.gz")))
	s := surveyOf(all, SurveyOptions{})
	if err != nil || len(all) != 13022 || len(s.Channels()) != 1 || s.Flows()[0].Protocol != IEXTP {
		t.Fatalf("IEX: %d packets, %v, %+v", len(all), err, s.Flows()[0])
	}
	n, most := 0, 0
	var scratch []byte
	for _, p := range all {
		m, err := IEXTP.Parse(p.Payload, &scratch)
		if err != nil {
			t.Fatal(err)
		}
		n, most = n+m.Msgs.Len(), max(most, m.Msgs.Len())
	}
	if n != 57674 || most != 52 {
		t.Errorf("IEX: %d messages, at most %d a packet", n, most)
	}
}

func TestCorpusNasdaq(t *testing.T) {
	all, err := readAll(t, bytes.NewReader(corpusFile(t, "nasdaq-totalview-2016/nasdaq.pcap")))
	if err != nil || len(all) != 2047 {
		t.Fatal(len(all), err)
	}
	s := surveyOf(all, SurveyOptions{})
	next, packets := moldcast.Seq(484311999), 0
	for _, p := range all {
		f, fault := s.Judge(&p)
		if f == nil {
			continue
		}
		m, err := f.Protocol.Parse(p.Payload, nil)
		if fault != Whole || err != nil || m.First != next || m.Session.String() != "000007525B" || p.Dst != groupA {
			t.Fatalf("frame %d: %v, %v, %v", p.Frame, fault, err, m)
		}
		next = m.Range().Next
		packets++
	}
	if packets != 2036 || next != 484314231 {
		t.Errorf("%d packets up to %d", packets, next)
	}
}

// Cut and damaged copies: never a panic, every frame before the damage whole,
// the fault of the file named where it is.
func TestCorpusDamaged(t *testing.T) {
	file := corpusFile(t, "nasdaq-totalview-2016/nasdaq.pcap")
	all, err := readAll(t, bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rounds := 60
	if os.Getenv("MOLDTAPE_LONG") != "" {
		rounds = 1000
	}
	for range rounds {
		b := bytes.Clone(file)
		at := 24 + rng.IntN(len(b)-24)
		cut := rng.IntN(2) == 0
		if cut {
			b = b[:at]
		} else {
			b[at] ^= byte(1 + rng.IntN(255))
		}
		got, err := readAll(t, bytes.NewReader(b))
		var fe *FormatError
		if err != nil && !errors.As(err, &fe) {
			t.Fatal(err)
		}
		// The frames that end before the damage.
		n := 0
		for n < len(all)-1 && all[n+1].Pos <= int64(at) {
			n++
		}
		if len(got) < n {
			t.Fatalf("damage at byte %d: %d frames, want %d at least; %v", at, len(got), n, err)
		}
		for i := range n {
			if got[i].Pos != all[i].Pos || got[i].Fault != Whole || !bytes.Equal(got[i].Payload, all[i].Payload) {
				t.Fatalf("damage at byte %d changed frame %d", at, i+1)
			}
		}
		if cut && int64(at) != all[n].Pos && (fe == nil || fe.Pos != all[n].Pos || !errors.Is(err, ErrTruncated)) {
			t.Fatalf("cut at byte %d: %v, want byte %d", at, err, all[n].Pos)
		}
		surveyOf(got, SurveyOptions{})
	}
}
