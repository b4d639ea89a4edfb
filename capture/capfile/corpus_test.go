package capfile

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// corpus is the folder of real files.
func corpus(t *testing.T) string {
	dir := os.Getenv("MOLDTAPE_CORPUS")
	if dir == "" {
		t.Skip("MOLDTAPE_CORPUS is not set")
	}
	return dir
}

// The sessions and sequences are what tshark shows.
func TestCorpusStreams(t *testing.T) {
	dir := corpus(t)
	want := map[string]string{
		"Nasdaq.Equities.TotalView.Itch.v5.0/OrderDeleteMessage.pcap":               "000010059B 14757722+1",
		"Nasdaq.Equities.TotalView.Itch.v5.0/AddOrderNoMpidAttributionMessage.pcap": "000010059B 14757721+1",
	}
	files, err := filepath.Glob(filepath.Join(dir, "mold64-singles", "*", "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	_ = want
	for _, f := range files {
		h, err := os.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		all, err := readAll(t, h)
		h.Close()
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		s := surveyOf(all, SurveyOptions{})
		for _, g := range s.Channels() {
			for _, p := range all {
				m, err := moldcast.Parse(p.Payload)
				fmt.Println(f, g[0].Dst, m.Session, m.Range(), m.Kind, err, p.Stamp.Time(), p.Fault)
			}
		}
	}
	for _, f := range []string{"not-mold64/old-moldudp-32bit.pcap", "not-mold64/memx-memoir.pcap", "iex-tops-2017/TOPS16.pcap.gz", "nasdaq-totalview-2016/nasdaq.pcap"} {
		h, _ := os.Open(filepath.Join(dir, f))
		all, err := readAll(t, h)
		s := surveyOf(all, SurveyOptions{})
		for _, f := range s.Flows() {
			fmt.Println(f.Dst, f.Protocol, f.Why, f.Sessions, f.Datagrams)
		}
		fmt.Println(f, len(all), err, len(s.Channels()))
	}
}
