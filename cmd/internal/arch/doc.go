// Package arch holds the test of who may import whom.
package arch
