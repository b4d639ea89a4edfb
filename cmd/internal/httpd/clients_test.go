package httpd

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
)

func someClients(n, from int) (list []retransmit.ClientStatus) {
	session, _ := moldcast.ParseSession("S1")
	for i := range n {
		c := retransmit.ClientStatus{Wait: 250 * time.Millisecond, Quiet: time.Second, Allowed: true}
		c.Addr = netip.AddrFrom4([4]byte{10, 0, byte(from), byte(i)})
		c.Requests, c.Answered, c.Bytes = uint64(1000-i-from), 5, 700
		c.Refused[retransmit.ClientRate] = 9
		if i > 0 {
			c.Session, c.Range, c.Lowest = session, moldcast.Range{First: 10, Next: 20}, 3
		}
		list = append(list, c)
	}
	return list
}

// The document lists those of all servers who asked most, bounded; metrics
// fewer of them.
func TestClients(t *testing.T) {
	servers := []Clients{{"127.0.0.1:1", someClients(90, 0), 3}, {"127.0.0.1:2", someClients(90, 50), 4}}
	_, url := server(t, Config{Status: always(sample("x", 1)), Requests: func() retransmit.Stats { return retransmit.Stats{} }, Clients: func(n int) []Clients {
		if n != MaxClients {
			t.Errorf("asked for %d", n)
		}
		return servers
	}})
	_, body := get(t, url+"/status")
	var d Document
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		t.Fatal(err)
	}
	top := d.Requests.Top
	if len(top) != MaxClients || d.Requests.Forgotten != 7 {
		t.Fatal(len(top), d.Requests.Forgotten)
	}
	for i := range top[1:] {
		if top[i].Received < top[i+1].Received {
			t.Fatal("not by requests")
		}
	}
	session, _ := moldcast.ParseSession("S1")
	want := Client{
		Client: "10.0.0.1", Server: "127.0.0.1:1", Received: 999, Answered: 5, Bytes: 700, Refused: map[string]uint64{"client_rate": 9}, Last: top[1].Last,
		Session: &session, FirstSeq: 10, LastSeq: 19, LowestSeq: 3, AgainSeconds: 0.25, Allowed: true,
	}
	if !reflect.DeepEqual(top[1], want) {
		t.Errorf("%+v\nwant %+v", top[1], want)
	}
	if d.Time.Sub(top[1].Last) != time.Second {
		t.Errorf("last %v at %v", top[1].Last, d.Time)
	}
	if top[0].Session != nil {
		t.Errorf("asked for nothing: %v", top[0].Session)
	}
	_, metrics := get(t, url+"/metrics")
	if n := strings.Count(metrics, "\nmoldtape_client_requests_total{"); n != maxClientMetrics {
		t.Errorf("%d clients have metrics", n)
	}
	if !strings.Contains(metrics, `moldtape_client_refused_total{client="10.0.0.1",server="127.0.0.1:1"} 9`) {
		t.Error("refusals of a client are missing")
	}
}
