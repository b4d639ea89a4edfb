// Package block is the codec of a block: the unit in which an archive
// compresses, checks and stores the messages of a session.
package block
