package config

import (
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/store"
)

// Unset is the value of a number that was not given, where that is not the same
// as any number: Node.Keep and MaxBytes, by which nothing is removed then, and
// the bounds of memory, which EnsureDefaults chooses.
const Unset = -1

// Node is everything that a capture node is told: by flags, or by a file. The
// fields that are text are checked by Validate, and understood by Build.
type Node struct {
	Archive string // "": the command's default

	Sync        time.Duration
	SegmentSize int64
	SegmentTime time.Duration
	Reserve     int64
	QueueBytes  int64 // bound of what waits for the disk, for each session
	Codec       string
	Verify      bool // blocks, before they are stored
	Keep        time.Duration
	MaxBytes    int64
	RetainEvery time.Duration

	RetransmitListen string
	RetransmitDuty   string // always or beyond-window
	MTU              int
	Allow            []string
	RatePerClient    float64
	RateTotal        float64
	Streams          Streams
	HTTP             string
	Pprof            bool
	AckKey           string // a file
	SnapshotMax      int64  // bytes

	NakRateTotal int    // requests a second, of all channels
	RX           string // auto, udp or ring
	RXRing       int64  // bytes of each receive ring

	UntilEnd   bool
	EndTimeout time.Duration
	Strict     bool

	LogLevel  string // "": the command's default
	LogFormat string

	Channels []Channel
}

// Channel is what one channel is told.
type Channel struct {
	Name      string
	Lines     []string // G:P[,interface=NAME][,source=ADDR]
	Interface string
	Sessions  []string

	Rerequest        []string // HOST:PORT or source, and [,window=N]
	RerequestPort    int
	Recovery         []string // recovery streams of peers, HOST:PORT
	Threshold        int      // of recovery
	RecoveryLogin    string   // file of the user and password of the logins there
	RecoveryTLS      bool
	RecoveryTLSCA    string   // file of who vouches for the peers
	Ack              []string // publishers that what is durable is acknowledged to, HOST:PORT
	RetransmitListen string   // of this channel alone, as the next; only in a file
	RecoveryListen   string

	SequenceCovers    string
	Increments        string
	Restart           string
	Heartbeats        string
	HeartbeatInterval time.Duration
	Snapshot          string

	ReorderWait  time.Duration
	ReorderBytes int64
	RingBytes    int64 // of each line, and of answers; only in a file
	NakRetry     time.Duration
	NakRate      int
	NakBudget    time.Duration
	OnLoss       string
	LineLog      string // auto, on, off
	Start        string // "": beginning where there is a request server or a recovery peer, else live
}

// What the flags of receiving say.
const (
	RXUsage     = "how multicast is received, `auto|udp|ring`: by UDP sockets, or by a ring shared with the kernel, at a fraction of the CPU (needs CAP_NET_RAW); auto is the ring where it can be"
	RXRingUsage = "memory of the receive ring of each interface"
)

// What the flags of storing say.
const (
	CodecUsage  = "how blocks are compressed, `auto|dense|fast|row`: auto is dense, at half the bytes of row, and fast while blocks wait, to be made dense when their segment is sealed"
	VerifyUsage = "decode each block, and compare it with what it was made from, before it is stored"
)

// LineLogUsage says what --line-log does.
const LineLogUsage = "keep when and on which line each datagram came, for replay --as-heard, `auto|on|off`: auto is on where there is one line, of which that costs next to nothing"

// Default is a node of no channel.
func Default() Node {
	return Node{
		Sync: store.DefaultSync, SegmentSize: 1 << 30, Reserve: store.DefaultReserve,
		Codec: store.CodecAuto.String(), Verify: true,
		QueueBytes: Unset, Keep: Unset, MaxBytes: Unset, RetainEvery: time.Minute, NakRateTotal: Unset,
		RX: mcast.Auto.String(), RXRing: mcast.DefaultRingSize,
		RetransmitDuty: DutyAlways, MTU: 1500, Streams: DefaultStreams(), RatePerClient: defaultPerClient, RateTotal: defaultTotal,
	}
}

// DefaultChannel is a channel of no line.
func DefaultChannel() Channel {
	return Channel{
		Name:           "default",
		SequenceCovers: string(moldcast.CoversChannel), Increments: string(moldcast.Consecutive), Restart: string(moldcast.RestartSession),
		Heartbeats: string(moldcast.HeartbeatNext), HeartbeatInterval: time.Second, Snapshot: string(moldcast.NoSnapshot),
		ReorderWait: 2 * time.Millisecond, ReorderBytes: Unset, RingBytes: Unset,
		NakRetry: 2 * time.Millisecond, NakRate: defNakRate, NakBudget: 10 * time.Second,
		Threshold: 10_000, OnLoss: "record", LineLog: "auto",
	}
}

// Field is one setting of a node or channel.
type Field struct {
	Key   string // in the file
	Flag  string // without the dashes; "": only in the file
	Usage string // of the flag
	Value Value
}

// Fields are the settings of n itself, those of its channels aside, in the
// order in which they are shown.
func (n *Node) Fields() []Field {
	fields := []Field{
		{"archive", "archive", "archive `DIR` (default $MOLDTAPE_ARCHIVE, else ./archive)", text{&n.Archive}},
		{"sync", "sync", "longest time a received message is not yet durable; 0: synced as soon as it is stored", Duration{&n.Sync}},
		{"segment_size", "segment-size", "start the next segment at this many stored bytes", Size{&n.SegmentSize}},
		{"segment_time", "segment-time", "start the next segment after this long; 0: by size only", Duration{&n.SegmentTime}},
		{"reserve", "reserve", "room kept in ARCHIVE/reserve, to stop in order on a full disk; 0: none", Size{&n.Reserve}},
		{"codec", "codec", CodecUsage, text{&n.Codec}},
		{"verify_blocks", "verify-blocks", VerifyUsage, boolean{&n.Verify}},
		{"queue_bytes", "", "", Optional{Size{&n.QueueBytes}, func() bool { return n.QueueBytes < 0 }}},
		{"keep", "keep", "while capturing, remove segments that were sealed this long ago, like 90d", Optional{Duration{&n.Keep}, func() bool { return n.Keep < 0 }}},
		{"max_bytes", "max-bytes", "while capturing, remove the oldest segments until the archive takes at most this much", Optional{Size{&n.MaxBytes}, func() bool { return n.MaxBytes < 0 }}},
		{"retain_every", "retain-every", "how often --keep and --max-bytes are applied", Duration{&n.RetainEvery}},
		{"retransmit_listen", "retransmit-listen", "serve requests for all that is archived on this UDP `HOST:PORT`", text{&n.RetransmitListen}},
		{"retransmit_duty", "retransmit-duty", "`always|beyond-window`: answer all requests, or leave to the sender what it surely still answers itself", text{&n.RetransmitDuty}},
		{"mtu", "mtu", "MTU of answers, in `BYTES`", integer{&n.MTU}},
		{"allow", "allow", "answer only clients in this `CIDR` (repeat; default loopback, private, shared and link-local addresses)", texts{&n.Allow}},
		{"rate_per_client", "rate-per-client", "requests a second answered to one client, 0 for no limit (clients on this machine, unless given: 200000); at once a quarter of a second's, but 64 at the least, or a second's where that is fewer", Rate{&n.RatePerClient}},
		{"rate_total", "rate-total", "requests a second answered in all, 0 for no limit", Rate{&n.RateTotal}},
		{"http", "http", "serve /status, /metrics, /healthz and /readyz on this TCP `HOST:PORT`, to whoever reaches it: there is no authentication", text{&n.HTTP}},
		{"snapshot_max", "snapshot-max", "over --http, take snapshots of applications of at most this much, from whoever reaches it (PUT /snapshots/CHANNEL/SESSION?seq=N); 0: none", Size{&n.SnapshotMax}},
		{"pprof", "pprof", "serve /debug/pprof/ on --http too", boolean{&n.Pprof}},
		{"ack_key", "ack-key", "make acknowledgements with the key in `FILE` (16 to 4096 bytes), as publish --ack-key", text{&n.AckKey}},
		{"nak_rate_total", "nak-rate-total", "most requests a second of all channels together, `N` (default the highest --nak-rate of one)", Optional{integer{&n.NakRateTotal}, func() bool { return n.NakRateTotal < 0 }}},
		{"rx", "rx", RXUsage, text{&n.RX}},
		{"rx_ring", "rx-ring", RXRingUsage, Size{&n.RXRing}},
		{"until_end", "until-end", "stop when every session has ended, is repaired and durable", boolean{&n.UntilEnd}},
		{"end_timeout", "end-timeout", "stop with exit 1 after this long without a packet; 0: never", Duration{&n.EndTimeout}},
		{"strict", "strict", "exit 1 if messages were lost or holes are left", boolean{&n.Strict}},
		{"log_level", "", "", text{&n.LogLevel}},
		{"log_format", "", "", text{&n.LogFormat}},
	}
	at := slices.IndexFunc(fields, func(f Field) bool { return f.Key == "http" })
	return slices.Insert(fields, at, n.Streams.Fields()...)
}

// Fields are the settings of c.
func (c *Channel) Fields() []Field {
	return []Field{
		{"name", "channel", "`NAME` of the channel: letters, digits and ._:-", text{&c.Name}},
		{"lines", "line", "line to receive, `G:P[,interface=NAME][,source=ADDR]`; repeat for B, C …", texts{&c.Lines}},
		{"interface", "interface", "interface `NAME` of lines that name none", text{&c.Interface}},
		{"sessions", "session", "record only this session `NAME` (repeat; default all)", texts{&c.Sessions}},
		{"rerequest", "rerequest", "request server `HOST:PORT[,window=N]`, or source with --rerequest-port (repeat); one is not asked for what is more than N messages back", texts{&c.Rerequest}},
		{"rerequest_port", "rerequest-port", "`PORT` of --rerequest source", integer{&c.RerequestPort}},
		{"recovery", "recovery", "recovery stream of a peer, `HOST:PORT` (repeat): long gaps are fetched from it", texts{&c.Recovery}},
		{"recovery_threshold", "recovery-threshold", "fetch gaps of more than `N` messages from --recovery; without a request server every gap is", integer{&c.Threshold}},
		{"recovery_login", "recovery-login", "log in to --recovery as `FILE` says, in one line USER:PASSWORD", text{&c.RecoveryLogin}},
		{"recovery_tls", "recovery-tls", "--recovery by TLS", boolean{&c.RecoveryTLS}},
		{"recovery_tls_ca", "recovery-tls-ca", "--recovery by TLS, with peers that a certificate of this PEM `FILE` vouches for, instead of the system's", text{&c.RecoveryTLSCA}},
		{"ack", "ack", "acknowledge what is durable to the publisher at `HOST:PORT`, its --ack-listen (repeat for more)", texts{&c.Ack}},
		{"retransmit_listen", "", "", text{&c.RetransmitListen}},
		{"recovery_listen", "", "", text{&c.RecoveryListen}},
		{"sequence_covers", "sequence-covers", "`channel|line`: the lines are copies of one stream, or each has numbers of its own and is recorded as CHANNEL.A, CHANNEL.B …", text{&c.SequenceCovers}},
		{"increments", "increments", "`consecutive|rising`: a number that is skipped is a message that is missing, or need not exist", text{&c.Increments}},
		{"restart", "restart", "`session|sequence`: a sender that begins anew has another session name, or also the same one and numbers from 1", text{&c.Restart}},
		{"heartbeats", "heartbeats", "`next|last|none`: heartbeats carry the sequence of the next message, or of the last one; or there are none", text{&c.Heartbeats}},
		{"heartbeat_interval", "heartbeat-interval", "how often an idle line is heard; one that is not for three of them is silent", Duration{&c.HeartbeatInterval}},
		{"snapshot", "snapshot", "`none|next|last`: what a snapshot of the feed names: the sequence that follows it, or its last; only kept on record", text{&c.Snapshot}},
		{"reorder_wait", "reorder-wait", "how long an early message waits in memory for its predecessor: so much later than --sync it is durable; no longer than --nak-budget", Duration{&c.ReorderWait}},
		{"reorder_bytes", "reorder-bytes", "bound of what waits in memory (default 64MiB)", Optional{Size{&c.ReorderBytes}, func() bool { return c.ReorderBytes < 0 }}},
		{"ring_bytes", "", "", Optional{Size{&c.RingBytes}, func() bool { return c.RingBytes < 0 }}},
		{"nak_retry", "nak-retry", "least time before a request is repeated", Duration{&c.NakRetry}},
		{"nak_rate", "nak-rate", "most requests a second, `N`: what the servers bear. They begin with 1000, and become more only while there is something to ask for and the answers come", integer{&c.NakRate}},
		{"nak_budget", "nak-budget", "how long a gap is asked for before it is recorded as a hole", Duration{&c.NakBudget}},
		{"on_loss", "on-loss", "`record|stall`: after the budget the hole is on record, or never given up", text{&c.OnLoss}},
		{"line_log", "line-log", LineLogUsage, text{&c.LineLog}},
		{"start", "start", "where a new session begins, `beginning|live` (default beginning where there is a request server or a recovery peer, else live)", text{&c.Start}},
	}
}

// OfChannel reports whether a flag is a setting of a channel: such flags
// cannot be mixed with a file.
func OfChannel(flag string) bool {
	var c Channel
	for _, f := range c.Fields() {
		if f.Flag == flag {
			return true
		}
	}
	return false
}

// What the bounds of memory are together, where they are left to EnsureDefaults:
// a node of many channels does not take more than one of a few.
const (
	allRings   = 512 << 20
	allReorder = 1 << 30
	allQueues  = 1 << 30

	mostRing, leastRing       = 16 << 20, 1 << 20
	mostReorder, leastReorder = 64 << 20, 4 << 20
	mostQueue, leastQueue     = 64 << 20, 4 << 20
)

// EnsureDefaults chooses the bounds of memory that were not given: up to
// 64 MiB for each channel's early messages and as much for what waits for the
// disk, together 1 GiB each; 16 MiB for each ring, together 512 MiB; of a very
// large node 4 and 1 MiB at the least. And as many requests a second in all as
// the channel may send that may send most.
func (n *Node) EnsureDefaults() {
	rings, most := 0, 1
	for i := range n.Channels {
		rings += len(n.Channels[i].Lines)
		if len(n.Channels[i].Rerequest) > 0 {
			rings++ // of answers
		}
	}
	choose := func(p *int64, all, parts, least, most int) {
		if *p < 0 {
			*p = int64(min(max(all/max(parts, 1), least), most))
		}
	}
	choose(&n.QueueBytes, allQueues, len(n.Channels), leastQueue, mostQueue)
	for i := range n.Channels {
		c := &n.Channels[i]
		choose(&c.ReorderBytes, allReorder, len(n.Channels), leastReorder, mostReorder)
		choose(&c.RingBytes, allRings, rings, leastRing, mostRing)
		most = max(most, c.NakRate)
	}
	if n.NakRateTotal < 0 {
		n.NakRateTotal = most
	}
}
