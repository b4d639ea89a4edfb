package mcast

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetRing receives multicast groups of one interface through a TPACKET_V3
// receive ring: the kernel writes packets into memory that is shared with it,
// block by block. It is a Socket, and a lender.
//
// For each group there is a UDP socket, too: it is the membership, and hears
// what this host itself sends to the group on an interface that is no
// loopback, which a packet socket never does. All else its filter drops.
type packetRing struct {
	lifetime
	log    *slog.Logger
	groups []group
	conns  []*Conn // by the group's number

	poller int // epoll
	link   *link

	mu struct {
		sync.Mutex
		fd int // the packet socket; changed by the reading goroutine alone
	}

	// Of the reading goroutine.
	mem       []byte
	index     int
	loopback  bool
	maxData   int
	size      int    // of the ring, bytes; what was got
	at        int    // the block that is read, or read next
	cur       *block // nil: none is open
	open      block
	lent      bool   // something in the open block was lent
	copying   bool   // what the open block holds is copied
	held      []bool // by block: lent, not given back
	leases    []lease
	oldest    int // of leases
	nleases   int
	rest      []byte // of a super-packet that was begun
	segment   int
	super     Datagram
	looped    []int // groups whose sockets may have something
	unbound   bool  // the interface is gone: a new socket is needed
	events    [8]unix.EpollEvent
	borrowed  atomic.Bool // mem is given back by the one who was lent to
	truncated atomic.Uint64
	invalid   atomic.Uint64
	errors    atomic.Uint64
	dropped   atomic.Uint64
	rejoins   atomic.Uint64
}

// lease is a block that the consumer reads from until it has come to a
// position.
type lease struct {
	block int
	upto  uint64
}

const (
	ringBlock    = 128 << 10 // bytes: the longest datagram fits, and a block a millisecond is little
	retireAfter  = 1         // ms: a block with something in it is handed over after so long
	copyBelow    = ringBlock / 4
	heldWait     = 100 // ms: how long blocks that were read may stay lent at rest
	tightWait    = 1   // ms: the same when there are few left
	unboundWait  = 500 // ms between tries to get a socket on an interface that is new
	eventWake    = -1  // in EpollEvent.Fd …
	eventPackets = -2
	eventLink    = -3 // … other values are a group's number
)

// openPacketRing makes a ring for lines, which are multicast and on one
// interface, each another group and port. It tells what each is received on, or why there is
// none.
func openPacketRing(lines []ListenConfig) (Socket, []netip.AddrPort, error) {
	c := lines[0]
	ifi, err := lookupInterface(c.Interface)
	if err != nil {
		return nil, nil, err
	}
	p := &packetRing{
		log: c.Log, index: ifi.Index, loopback: ifi.Flags&net.FlagLoopback != 0,
		maxData: c.MaxDatagram, size: c.RingSize, poller: -1,
	}
	p.mu.fd = -1
	if err := p.init(p.free); err != nil {
		return nil, nil, err
	}
	if err := p.start(ifi, lines); err != nil {
		p.Close()
		return nil, nil, fmt.Errorf("interface %s: %w", ifi.Name, err)
	}
	addrs := make([]netip.AddrPort, len(p.conns))
	for i, c := range p.conns {
		addrs[i] = c.local
	}
	return p, addrs, nil
}

func (p *packetRing) start(ifi *net.Interface, lines []ListenConfig) error {
	if err := ethernet(ifi.Name); err != nil {
		return err
	}
	// Before any group is joined: who may not, disturbs nothing.
	var err error
	if p.mu.fd, err = packetSocket(); err != nil {
		return err
	}
	if p.poller, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if p.link, err = newLink(ifi, p.log); err != nil {
		return fmt.Errorf("watching the interface: %w", err)
	}
	for i, c := range lines {
		c.ring, c.Log = true, slog.New(slog.DiscardHandler)
		conn, err := Listen(c)
		if err != nil {
			return err
		}
		p.conns = append(p.conns, conn)
		g := group{ip: toUint32(conn.local.Addr()), port: conn.local.Port()}
		for _, s := range c.sources {
			g.sources = append(g.sources, toUint32(s))
		}
		p.groups = append(p.groups, g)
		p.maxData = min(p.maxData, c.MaxDatagram)
		if err := p.watch(conn.fd, unix.EPOLLIN, i); err != nil {
			return err
		}
	}
	if err := errors.Join(p.watch(p.wake, unix.EPOLLIN, eventWake), p.watch(p.link.fd, unix.EPOLLIN, eventLink)); err != nil {
		return err
	}
	return p.bind()
}

func (p *packetRing) watch(fd int, events uint32, tag int) error {
	if err := unix.EpollCtl(p.poller, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(tag)}); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// bind makes p.mu.fd, a fresh packet socket, hear the groups.
func (p *packetRing) bind() error {
	mem, err := setupRing(p.mu.fd, p.size, ringFilter(p.index, p.groups))
	if err != nil {
		return err
	}
	p.mem, p.at = mem, 0
	blocks := len(mem) / ringBlock
	p.held, p.leases, p.oldest = make([]bool, blocks), make([]lease, blocks), 0
	if len(mem) < p.size {
		p.log.Warn("receive ring is smaller than asked for: bursts may be lost in the kernel", "asked", p.size, "got", len(mem))
		p.size = len(mem)
	}
	// Edge-triggered: a block that stays lent does not wake again.
	if err := p.watch(p.mu.fd, unix.EPOLLIN|unix.EPOLLERR|unix.EPOLLET&(1<<32-1), eventPackets); err != nil {
		return err
	}
	return attachInterface(p.mu.fd, p.index)
}

// free ends all but the memory that may still be read from.
func (p *packetRing) free() {
	p.countDrops()
	for _, c := range p.conns {
		c.Close()
	}
	if p.link != nil {
		p.link.close()
	}
	if p.poller >= 0 {
		unix.Close(p.poller)
	}
	if p.mu.fd >= 0 {
		silence(p.mu.fd) // mapped, it lives on
		unix.Close(p.mu.fd)
	}
	if !p.borrowed.Load() {
		p.unmap()
	}
}

func (p *packetRing) unmap() {
	if p.mem != nil {
		_ = unix.Munmap(p.mem)
		p.mem, p.open, p.rest = nil, block{}, nil
	}
}

// borrow and giveBack implement lender.
func (p *packetRing) borrow()   { p.borrowed.Store(true) }
func (p *packetRing) giveBack() { p.unmap() }

// LocalAddr implements Socket.
func (p *packetRing) LocalAddr() netip.AddrPort { return p.conns[0].local }

// WriteBatch implements Socket.
func (p *packetRing) WriteBatch(ds []Datagram) (int, error) { return p.conns[0].WriteBatch(ds) }

// Send implements Socket; as on any socket that was not dialled, it fails.
func (p *packetRing) Send(batch [][]byte) (int, error) { return p.conns[0].Send(batch) }

// Counters is a snapshot; it may be called at any time.
func (p *packetRing) Counters() Counters {
	if p.enter() {
		p.countDrops()
		p.leave()
	}
	c := Counters{
		KernelDropped: p.dropped.Load(),
		Truncated:     p.truncated.Load(),
		ReadErrors:    p.errors.Load(),
		Rejoins:       p.rejoins.Load(),
		Invalid:       p.invalid.Load(),
	}
	for _, s := range p.conns {
		// Their drops are what the filter drops.
		n := s.Counters()
		c.Truncated += n.Truncated
		c.ReadErrors += n.ReadErrors
		c.Sent += n.Sent
		c.SendRetries += n.SendRetries
		c.SendErrors += n.SendErrors
	}
	return c
}

// countDrops adds what the kernel dropped since it was asked last.
func (p *packetRing) countDrops() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, err := unix.GetsockoptTpacketStatsV3(p.mu.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		p.dropped.Add(uint64(s.Drops))
	}
}

// ReadBatch implements Socket: it copies. An RX reads without.
func (p *packetRing) ReadBatch(ds []Datagram) (int, error) {
	for {
		if len(ds) == 0 {
			return 0, nil
		}
		if !p.enter() {
			return 0, net.ErrClosed
		}
		n := p.read(ds, 0, true)
		p.leave()
		if n > 0 {
			return n, nil
		}
		if err := p.wait(false); err != nil {
			return 0, err
		}
	}
}

// lend implements lender.
func (p *packetRing) lend(ds []Datagram, pos uint64) int { return p.read(ds, pos, false) }

func (p *packetRing) read(ds []Datagram, pos uint64, copyAll bool) int {
	n := 0
	for n < len(ds) {
		if len(p.rest) > 0 {
			p.split(&ds[n], copyAll)
			n++
			continue
		}
		if p.cur == nil && !p.openNext(copyAll) {
			break
		}
		f, ok, more := p.cur.next()
		if !more {
			p.closeBlock(pos + uint64(n))
			continue
		}
		if !ok || !p.take(&f, &ds[n], copyAll) {
			if !ok {
				p.invalid.Add(1)
			}
			continue
		}
		n++
	}
	if n == 0 && len(ds) > 0 && len(p.looped) > 0 {
		n = p.readLooped(ds)
	}
	return n
}

// openNext opens the next block, if the kernel has handed it over.
func (p *packetRing) openNext(copyAll bool) bool {
	if p.mem == nil { // no socket yet on an interface that is new
		return false
	}
	mem := p.mem[p.at*ringBlock : (p.at+1)*ringBlock]
	if p.held[p.at] || atomic.LoadUint32(p.status(p.at))&statusUser == 0 {
		return false
	}
	p.open = openBlock(mem)
	p.cur, p.lent = &p.open, false
	// A block that holds little is copied: lent, it would be the most of the
	// ring that is in use.
	p.copying = copyAll || p.open.length() < copyBelow
	return true
}

// closeBlock ends the open block: it is given back, at once or when the
// consumer has come to pos.
func (p *packetRing) closeBlock(pos uint64) {
	if p.lent {
		p.held[p.at] = true
		p.leases[(p.oldest+p.nleases)%len(p.leases)] = lease{p.at, pos}
		p.nleases++
	} else {
		atomic.StoreUint32(p.status(p.at), 0)
	}
	p.cur = nil
	p.at = (p.at + 1) % len(p.held)
}

// release implements lender.
func (p *packetRing) release(pos uint64) {
	for p.nleases > 0 && p.leases[p.oldest].upto <= pos {
		b := p.leases[p.oldest].block
		p.held[b] = false
		atomic.StoreUint32(p.status(b), 0)
		p.oldest = (p.oldest + 1) % len(p.leases)
		p.nleases--
	}
}

func (p *packetRing) status(b int) *uint32 {
	return (*uint32)(unsafe.Pointer(&p.mem[b*ringBlock+blockStatus]))
}

// take makes a datagram of a frame; ok is false where there is none in it for
// any group.
func (p *packetRing) take(f *frame, d *Datagram, copyAll bool) (ok bool) {
	u, ok := f.parse()
	if !ok || u.src>>24 == 127 && !p.loopback {
		p.invalid.Add(1)
		return false
	}
	g := 0
	for ; g < len(p.groups); g++ {
		if p.groups[g].hears(&u) {
			break
		}
	}
	if g == len(p.groups) {
		return false
	}
	data := u.data
	d.Src = netip.AddrPortFrom(fromUint32(u.src), u.srcPort)
	d.Dst = p.conns[g].local
	d.Local = netip.Addr{}
	d.Stamp, d.IfIndex, d.group = f.stamp, p.index, uint8(g)
	if f.segment > 0 && len(data) > f.segment {
		// Segments are cut as the sender's socket, or the receive offload,
		// glued them.
		p.super, p.rest, p.segment = *d, data, f.segment
		p.super.Truncated = u.cut
		p.split(d, copyAll)
		return true
	}
	d.Truncated = u.cut
	p.put(d, data, copyAll)
	return true
}

// split takes the next datagram of a super-packet.
func (p *packetRing) split(d *Datagram, copyAll bool) {
	buf := d.Data
	*d = p.super
	d.Data = buf
	k := min(p.segment, len(p.rest))
	d.Truncated = p.super.Truncated && k == len(p.rest)
	p.put(d, p.rest[:k:k], copyAll)
	p.rest = p.rest[k:]
}

// put gives d its data: a copy in d's buffer, or the ring's own memory.
func (p *packetRing) put(d *Datagram, data []byte, copyAll bool) {
	if len(data) > p.maxData {
		data, d.Truncated = data[:p.maxData], true
	}
	if d.Truncated {
		p.truncated.Add(1)
	}
	d.lent = !copyAll && !(p.copying && len(data) <= cap(d.Data))
	if d.lent {
		d.Data, p.lent = data, true
	} else {
		d.Data = append(d.Data[:0], data...)
	}
}

// readLooped reads what the groups' own sockets heard.
func (p *packetRing) readLooped(ds []Datagram) int {
	for len(p.looped) > 0 {
		g := p.looped[len(p.looped)-1]
		c := p.conns[g]
		n, errno := c.tryRead(ds)
		if errno == 0 && n > 0 {
			for i := range ds[:n] {
				ds[i].group = uint8(g)
			}
			return n
		}
		if errno != unix.EAGAIN && errno != unix.EINTR {
			c.readErrors.Add(1)
		}
		p.looped = p.looped[:len(p.looped)-1]
	}
	return 0
}

// wait implements lender.
func (p *packetRing) wait(full bool) error {
	if !p.enter() {
		return net.ErrClosed
	}
	defer p.leave()
	if full {
		// Other events would not let it sleep.
		wake := [1]unix.PollFd{{Fd: int32(p.wake), Events: unix.POLLIN}}
		_, _ = unix.Poll(wake[:], tightWait)
		return nil
	}
	timeout := p.link.timeout()
	sooner := func(ms int) {
		if timeout < 0 || ms < timeout {
			timeout = ms
		}
	}
	switch {
	case p.nleases > len(p.leases)/2:
		sooner(tightWait)
	case p.nleases > 0:
		sooner(heldWait)
	}
	if p.unbound {
		sooner(unboundWait)
	}
	n, err := unix.EpollWait(p.poller, p.events[:], timeout)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("epoll: %w", err)
	}
	if p.closed() {
		return net.ErrClosed
	}
	links := n == 0
	for _, e := range p.events[:max(n, 0)] {
		switch e.Fd {
		case eventWake:
		case eventLink:
			links = true
		case eventPackets:
			if e.Events&unix.EPOLLERR != 0 {
				p.socketError()
			}
		default:
			if !slices.Contains(p.looped, int(e.Fd)) {
				p.looped = append(p.looped, int(e.Fd))
			}
		}
	}
	if links && (n > 0 || p.link.timeout() >= 0) {
		p.link.step(p)
	}
	if p.unbound && p.cur == nil && p.nleases == 0 {
		p.rebind()
	}
	return nil
}

// socketError takes the packet socket's error: ENETDOWN when the interface
// went down. The kernel hooks it up again when it is back.
func (p *packetRing) socketError() {
	p.errors.Add(1)
	errno, err := unix.GetsockoptInt(p.mu.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	p.log.Debug("packet socket", "interface", p.link.name, "err", unix.Errno(errno), "getsockopt", err)
}

// leaveGroup and joinGroup implement joiner.
func (p *packetRing) leaveGroup(index int) {
	for _, c := range p.conns {
		c.leaveGroup(index)
	}
}

func (p *packetRing) joinGroup(index int) error {
	for _, c := range p.conns {
		if err := c.joinGroup(index); err != nil {
			return err
		}
	}
	p.rejoins.Add(1)
	// A packet socket stays with its interface, not with the name.
	if index != p.index {
		p.index, p.unbound = index, true
	}
	return nil
}

// rebind replaces the packet socket, whose interface is gone and all of whose
// blocks were read.
func (p *packetRing) rebind() {
	fd, err := packetSocket()
	if err == nil {
		p.countDrops()
		p.mu.Lock()
		_ = unix.EpollCtl(p.poller, unix.EPOLL_CTL_DEL, p.mu.fd, nil)
		unix.Close(p.mu.fd)
		p.mu.fd = fd
		p.mu.Unlock()
		p.unmap()
		err = p.bind()
	}
	if err != nil {
		p.errors.Add(1)
		p.log.Warn("interface is new, but has no receive ring yet: tried again", "interface", p.link.name, "err", err)
		return
	}
	p.unbound = false
}
