package transport_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/internal/testcert"
)

// BenchmarkRead reads what a client sends as many small packets, a frame each where there are frames.
func BenchmarkRead(b *testing.B) {
	ca := testcert.NewCA(b)
	cert := ca.Issue("server")
	for _, kind := range []string{transport.TCP, transport.TLS, transport.WS, transport.WSS} {
		for _, size := range []int{64, 1024, 65536} {
			b.Run(fmt.Sprintf("type=%s/size=%d", kind, size), func(b *testing.B) {
				s := serve(b, transport.Options{Type: kind, TLS: transport.TLSOptions{Cert: cert.Cert, Key: cert.Key}}, patience)
				client := benchClient(b, s, kind, ca)
				conn := s.conn()
				packet := []byte(strings.Repeat("x", size))
				if kind == transport.WS || kind == transport.WSS {
					packet = frame(fin|binaryFrame, string(packet))
				}
				const batch = 64 << 10
				many := bytes.Repeat(packet, max(1, batch/len(packet)))
				stop := make(chan struct{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					for {
						select {
						case <-stop:
							return
						default:
						}
						if _, err := client.Write(many); err != nil {
							return
						}
					}
				}()
				buf := make([]byte, 64<<10)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				reads := 0
				b.ResetTimer()
				for n, want := 0, b.N*size; n < want; reads++ {
					m, err := conn.Read(buf)
					if err != nil {
						b.Fatal(err)
					}
					n += m
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N)/float64(reads), "packets/read")
				close(stop)
				_ = client.Close()
				<-done
			})
		}
	}
}

// BenchmarkWrite writes batches as the broker's writer does.
func BenchmarkWrite(b *testing.B) {
	ca := testcert.NewCA(b)
	cert := ca.Issue("server")
	for _, kind := range []string{transport.TCP, transport.TLS, transport.WS, transport.WSS} {
		for _, size := range []int{64, 4096, 65536} {
			b.Run(fmt.Sprintf("type=%s/size=%d", kind, size), func(b *testing.B) {
				s := serve(b, transport.Options{Type: kind, TLS: transport.TLSOptions{Cert: cert.Cert, Key: cert.Key}}, patience)
				client := benchClient(b, s, kind, ca)
				conn := s.conn()
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{client}, make([]byte, 256<<10))
				}()
				p := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := conn.Write(p); err != nil {
						b.Fatal(err)
					}
				}
				_ = client.Close()
				<-done
			})
		}
	}
}

// benchClient is connected, through TLS if need be, and as a WebSocket if need be.
func benchClient(b *testing.B, s *server, kind string, ca *testcert.CA) net.Conn {
	b.Helper()
	c := s.dial()
	_ = c.SetDeadline(time.Time{})
	if kind == transport.TLS || kind == transport.WSS {
		t := tls.Client(c, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
		if err := t.Handshake(); err != nil {
			b.Fatal(err)
		}
		c = t
	}
	if kind == transport.WS || kind == transport.WSS {
		upgradeConn(b, c, "/mqtt", "mqtt")
	}
	return c
}
