// Package config is what a capture node is told, by flags or by a file, and
// everything that can be wrong with it.
//
// One struct serves both: a Field has the key of the file, the flag, and the
// value that either sets, so that they read alike and are checked by one
// Validate. A fault of a file is told with line and column.
//
// # The file
//
// YAML, one document. At the top the settings of the node, by the keys of
// Node.Fields, and:
//
//	defaults:   settings of every channel that does not say otherwise
//	channels:   a list; each has a name, lines, and any key of Channel.Fields
//
// A key is the name of its flag with _ for -, but for name (--channel), lines
// (--line) and sessions (--session); what a flag repeats is a list. Values are
// written as in flags: durations 50ms, 1h30m, 90d; sizes 65536, 64MiB, 1GB;
// true or false. A line is G:P[,interface=NAME][,source=ADDR], or a mapping of
// group, interface and source. A list of a channel replaces that of the
// defaults. Anchors and aliases are YAML's; an unknown key, a key given twice,
// a key without a value and a second document are faults.
package config
