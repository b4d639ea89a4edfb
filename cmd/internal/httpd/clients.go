package httpd

import (
	"cmp"
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
)

const (
	// MaxClients are listed in the document, those who asked most.
	MaxClients = 100
	// maxClientMetrics have metrics of their own.
	maxClientMetrics = 20
)

// Clients are those who ask, of one request server.
type Clients struct {
	Server    string // its address
	Clients   []retransmit.ClientStatus
	Forgotten uint64 // clients that are no longer told apart
}

// Client is one who asks.
type Client struct {
	Client       string            `json:"client"` // address
	Server       string            `json:"server"` // that was asked
	Received     uint64            `json:"received"`
	Answered     uint64            `json:"answered"`
	Bytes        uint64            `json:"bytes"`
	Refused      map[string]uint64 `json:"refused"` // by reason, those that occurred
	Last         time.Time         `json:"last"`    // the newest request
	Session      *moldcast.Session `json:"session"` // of it; null: it never asked for any
	FirstSeq     moldcast.Seq      `json:"first_seq"`
	LastSeq      moldcast.Seq      `json:"last_seq"`
	LowestSeq    moldcast.Seq      `json:"lowest_seq"`    // that it asked for in that session
	AgainSeconds float64           `json:"again_seconds"` // until the budgets have room for it; 0: now
	Allowed      bool              `json:"allowed"`       // by the allow-list; else it never may
}

// clientsOf is the list of the document.
func clientsOf(now time.Time, servers []Clients) (list []Client, forgotten uint64) {
	list = []Client{}
	for _, s := range servers {
		forgotten += s.Forgotten
		for _, c := range s.Clients {
			x := Client{
				Client: c.Addr.String(), Server: s.Server, Received: c.Requests, Answered: c.Answered, Bytes: c.Bytes,
				Refused: map[string]uint64{}, Last: now.Add(-c.Quiet).UTC(), AgainSeconds: c.Wait.Seconds(), Allowed: c.Allowed,
			}
			for r, n := range c.Refused {
				if n > 0 {
					x.Refused[retransmit.Reason(r).String()] = n
				}
			}
			if c.Lowest > 0 {
				session := c.Session
				x.Session, x.FirstSeq, x.LastSeq, x.LowestSeq = &session, c.Range.First, max(c.Range.First, c.Range.Next-1), c.Lowest
			}
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(a, b Client) int { return cmp.Compare(b.Received, a.Received) })
	return list[:min(len(list), MaxClients)], forgotten
}

// collect gives metrics of those who ask most; the others have none, so that
// forged sources cannot fill a database.
func collectClients(e emit, list []Client) {
	for _, c := range list[:min(len(list), maxClientMetrics)] {
		x := e.with("client", c.Client, "server", c.Server)
		x.counter("client_requests_total", "Requests received of a client, of those who sent most.", float64(c.Received))
		x.counter("client_answered_total", "Requests answered of the same.", float64(c.Answered))
		x.counter("client_answer_bytes_total", "Bytes of these answers.", float64(c.Bytes))
		refused := uint64(0)
		for _, n := range c.Refused {
			refused += n
		}
		x.counter("client_refused_total", "Requests without an answer of the same.", float64(refused))
	}
}
