package client

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"
)

// linger is how long a broker may take to close its side after a DISCONNECT.
const linger = time.Second

// politeConn closes so that the other side reads all that was written. Closing a socket that holds unread
// deliveries sends a reset, and a reset throws away the acks and the DISCONNECT that the broker has not
// read yet. So: say that nothing more comes, read what the broker still sends, and close when it has closed.
type politeConn struct {
	net.Conn
	once sync.Once
	err  error
}

func (c *politeConn) Close() error {
	c.once.Do(func() {
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(linger))
			_, _ = io.Copy(io.Discard, c.Conn)
		}
		c.err = c.Conn.Close()
	})
	return c.err
}

// packetConn writes each packet in one call and reads many: paho.golang writes a packet in pieces, between
// Lock and Unlock, and reads byte by byte.
type packetConn struct {
	net.Conn
	r  *bufio.Reader
	mu sync.Mutex
	w  *bufio.Writer
}

func newPacketConn(conn net.Conn) *packetConn {
	return &packetConn{Conn: conn, r: bufio.NewReaderSize(conn, 64<<10), w: bufio.NewWriterSize(conn, 16<<10)}
}

func (c *packetConn) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *packetConn) Write(p []byte) (int, error) { return c.w.Write(p) }
func (c *packetConn) Lock()                       { c.mu.Lock() }

// Unlock ends a packet. An error stays with the writer and meets the next packet; the reader, which ends the
// connection, meets it at once.
func (c *packetConn) Unlock() {
	_ = c.w.Flush()
	c.mu.Unlock()
}
