// Package socket reads and writes sockets without waiting, for those who would rather be somewhere else meanwhile: a connection
// that waits for its client needs no buffer, and a writer that serves many no goroutine for each.
package socket
