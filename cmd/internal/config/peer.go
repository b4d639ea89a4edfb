package config

// PeerAddr reports what is wrong with the address of a recovery stream.
func PeerAddr(s string) error { return peerAddr(s) }
