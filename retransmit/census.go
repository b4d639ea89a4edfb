package retransmit

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

const (
	// censusSize bounds the clients that are told apart in what is counted.
	censusSize = 1024
	// censusLook is among how many of those that were silent longest a new one
	// takes the place of who asked least.
	censusLook = 8
)

// Client is what one client asked for, and what became of it, since it is
// remembered.
type Client struct {
	Addr     netip.Addr // an IPv4 address
	Requests uint64
	Answered uint64 // answers given to the system to send
	Bytes    uint64 // of them, UDP payload
	Refused  [Reasons]uint64
	Last     moldcast.Instant // the newest request

	Session moldcast.Session // of the newest request that is one
	Range   moldcast.Range   // of the same
	Lowest  moldcast.Seq     // the lowest that it asked for in that session; 0: none
}

// census counts by client. It is bounded: a client that is not in it takes the
// place of one that has long been silent and asked little, so that those who
// ask most stay, whoever floods it with forged sources. It has one owner.
type census struct {
	rows      []Client // 0 is none
	byAddr    map[netip.Addr]int32
	recent    admit.Recency // by the newest request
	forgotten uint64        // clients that gave their place
}

func newCensus() *census {
	return &census{rows: make([]Client, 1, 64), byAddr: make(map[netip.Addr]int32)}
}

// asked takes note of a request of a client. r is the zero Request where what
// came is none.
func (c *census) asked(now moldcast.Instant, addr netip.Addr, r moldcast.Request) *Client {
	x := c.row(addr)
	x.Requests++
	x.Last = now
	if r.First > 0 && r.Count > 0 {
		if x.Session != r.Session || x.Lowest == 0 {
			x.Session, x.Lowest = r.Session, r.First
		}
		x.Range, x.Lowest = r.Range(), min(x.Lowest, r.First)
	}
	return x
}

// answered and refused tell what became of a request.
func (c *census) answered(addr netip.Addr, size int) { c.find(addr).answer(size) }

func (x *Client) answer(size int) {
	x.Answered++
	x.Bytes += uint64(size)
}

func (c *census) refused(addr netip.Addr, why Reason) { c.find(addr).Refused[why]++ }

// find is the row of a client that asked; that of nobody where it was
// forgotten since.
func (c *census) find(addr netip.Addr) *Client { return &c.rows[c.byAddr[addr]] }

func (c *census) row(addr netip.Addr) *Client {
	i, ok := c.byAddr[addr]
	switch {
	case ok:
	case len(c.rows) <= censusSize:
		i = int32(len(c.rows))
		c.rows = append(c.rows, Client{Addr: addr})
		c.byAddr[addr] = i
	default:
		i = c.recent.Oldest()
		for k, n := c.recent.Newer(i), 1; k != 0 && n < censusLook; k, n = c.recent.Newer(k), n+1 {
			if c.rows[k].Requests < c.rows[i].Requests {
				i = k
			}
		}
		delete(c.byAddr, c.rows[i].Addr)
		c.rows[i] = Client{Addr: addr}
		c.byAddr[addr] = i
		c.forgotten++
	}
	c.recent.Use(i)
	return &c.rows[i]
}

// place is how much a client asked.
type place struct {
	addr     netip.Addr
	requests uint64
}

// places appends those of all clients. It is apart from top, so that who has a
// lock on the census does not keep it while it sorts.
func (c *census) places(dst []place) []place {
	for i := range c.rows[1:] {
		x := &c.rows[i+1]
		dst = append(dst, place{x.Addr, x.Requests})
	}
	return dst
}

// top is those of all that asked most, at most n.
func top(all []place, n int) []place {
	slices.SortFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), a.addr.Compare(b.addr))
	})
	return all[:min(n, len(all))]
}
