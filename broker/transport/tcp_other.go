//go:build !linux

package transport

import "net"

// listenTCP opens a TCP address.
func listenTCP(address string) (net.Listener, error) { return net.Listen("tcp", address) }
