package transport

import (
	"net"
	"testing"
	"time"
)

// Whoever reads from a socket that is closed is told at once, though the peer neither sends nor closes: a client's next connection waits until
// the reader of the one before is done.
func TestCloseEndsTheReader(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := &Socket{half: c.(*net.TCPConn)}
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		close(began)
		_, err := s.Read(make([]byte, 1))
		ended <- err
	}()
	<-began
	if err := s.close(time.Hour); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it has read something")
		}
	case <-time.After(10 * time.Second):
		t.Error("the reader is still there")
	}
}
