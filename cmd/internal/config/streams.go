package config

import (
	"time"
)

// Streams is what is told of the recovery streams that are served.
type Streams struct {
	Listen  string
	Readers int // of each address, as all that follows
	Reads   int
	Cache   int64
	Stall   time.Duration
	Users   string // file
	TLSCert string // file, as TLSKey
	TLSKey  string
}

// DefaultStreams serves none.
func DefaultStreams() Streams {
	return Streams{Readers: 1024, Reads: 2, Cache: 32 << 20, Stall: 15 * time.Second}
}

// Bounds of Streams.
const (
	maxReaders = 65536
	maxReads   = 256
	leastCache = 1 << 20
	mostCache  = 16 << 30
	leastStall = time.Second
)

// Fields are the settings of s.
func (s *Streams) Fields() []Field {
	return []Field{
		{"recovery_listen", "recovery-listen", "serve recovery streams (SoupBinTCP) of all that is archived on this TCP `HOST:PORT`", text{&s.Listen}},
		{"recovery_readers", "recovery-readers", "most readers of recovery streams at once, `N`", integer{&s.Readers}},
		{"recovery_reads", "recovery-reads", "how many pieces of history are read from disk at once for the readers of recovery streams, `N`; the others wait in line", integer{&s.Reads}},
		{"recovery_cache", "recovery-cache", "how much of the streams is kept in memory, ready to be sent to other readers", Size{&s.Cache}},
		{"recovery_stall", "recovery-stall", "a reader of a recovery stream that takes nothing for so long is disconnected", Duration{&s.Stall}},
		{"recovery_users", "recovery-users", "only users that this `FILE` names, in lines USER:SALT:HASH (see the README), may log in to recovery streams; read at the start only", text{&s.Users}},
		{"recovery_tls_cert", "recovery-tls-cert", "serve recovery streams by TLS, with the certificate of this PEM `FILE`", text{&s.TLSCert}},
		{"recovery_tls_key", "recovery-tls-key", "PEM `FILE` of the key of --recovery-tls-cert", text{&s.TLSKey}},
	}
}

// unserved reports what is set to more than the default though nothing is
// served: who asks for users or TLS must not believe in them.
func (s *Streams) unserved() []Problem {
	var ps problems
	def := DefaultStreams()
	defaults := def.Fields()
	for i, f := range s.Fields() {
		if f.Value.String() != defaults[i].Value.String() {
			ps.add(f.Key, " goes with {recovery_listen}")
		}
	}
	return ps
}

// ValidateAlone is Validate where nothing but s says where streams are served.
func (s *Streams) ValidateAlone() []Problem {
	ps := s.Validate()
	if s.Listen == "" {
		ps = append(ps, s.unserved()...)
	}
	return ps
}

// Validate reports what is wrong with s, the address aside.
func (s *Streams) Validate() []Problem {
	var ps problems
	if s.Readers < 1 || s.Readers > maxReaders {
		ps.add("recovery_readers", " %d: want 1..%d", s.Readers, maxReaders)
	}
	if s.Reads < 1 || s.Reads > maxReads {
		ps.add("recovery_reads", " %d: want 1..%d", s.Reads, maxReads)
	}
	if s.Cache < leastCache || s.Cache > mostCache {
		ps.add("recovery_cache", " %d: want 1MiB to 16GiB", s.Cache)
	}
	if s.Stall < leastStall {
		ps.add("recovery_stall", " %v: want at least 1s", s.Stall)
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		ps.add("recovery_tls_cert", " and {recovery_tls_key} go together")
	}
	return ps
}
