package moldcast

// Feed is what a sender does that its packets do not say: facts of a channel,
// recorded with its sessions. The zero value of a field is its default.
type Feed struct {
	Covers     Covers     `json:"sequence_covers"`
	Increments Increments `json:"increments"`
	Restart    Restart    `json:"restart"`
	Heartbeats Heartbeats `json:"heartbeats"`
	Snapshot   Snapshot   `json:"snapshot"`
}

// EnsureDefaults fills what is empty.
func (f *Feed) EnsureDefaults() {
	def(&f.Covers, CoversChannel)
	def(&f.Increments, Consecutive)
	def(&f.Restart, RestartSession)
	def(&f.Heartbeats, HeartbeatNext)
	def(&f.Snapshot, NoSnapshot)
}

func def[T ~string](v *T, to T) {
	if *v == "" {
		*v = to
	}
}

// Covers is what one sequence of numbers covers.
type Covers string

// What a sequence covers.
const (
	CoversChannel Covers = "channel" // all lines: they are copies of one stream
	CoversLine    Covers = "line"    // each line its own: they are streams of their own
)

// Increments is how numbers follow each other.
type Increments string

// How numbers follow each other.
const (
	Consecutive Increments = "consecutive" // a number that is skipped is a message that is missing
	Rising      Increments = "rising"      // numbers only rise: one that is skipped need not exist
)

// Restart is what marks that a sender began anew.
type Restart string

// What marks a restart.
const (
	RestartSession  Restart = "session"  // another session name
	RestartSequence Restart = "sequence" // the same name, and numbers from 1 again
)

// Heartbeats is what a heartbeat carries.
type Heartbeats string

// What a heartbeat carries.
const (
	HeartbeatNext Heartbeats = "next" // the sequence of the next message, as MoldUDP64 has it
	HeartbeatLast Heartbeats = "last" // that of the last one, 0 before the first
	HeartbeatNone Heartbeats = "none" // nothing to go by: no loss of a tail is revealed by them
)

// Snapshot is what a snapshot of the feed aligns with.
type Snapshot string

// What a snapshot aligns with.
const (
	NoSnapshot   Snapshot = "none" // there is none, or it is not known
	SnapshotNext Snapshot = "next" // it names the sequence of the first message that is not in it
	SnapshotLast Snapshot = "last" // it names that of the last message in it
)
