package transport_test

import (
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/internal/testcert"
)

func TestTLS(t *testing.T) {
	ca, others := testcert.NewCA(t), testcert.NewCA(t)
	cert := ca.Issue("server")
	good, bad := ca.Issue("client").Load(t), others.Issue("client").Load(t)
	rules := func(change func(o *transport.TLSOptions)) transport.TLSOptions {
		o := transport.TLSOptions{Cert: cert.Cert, Key: cert.Key}
		change(&o)
		return o
	}
	plain := rules(func(*transport.TLSOptions) {})
	only13 := rules(func(o *transport.TLSOptions) { o.MinVersion = "1.3" })
	require := rules(func(o *transport.TLSOptions) { o.ClientCA = ca.File })
	request := rules(func(o *transport.TLSOptions) { o.ClientCA, o.ClientCert = ca.File, transport.CertRequest })
	for _, tt := range []struct {
		name    string
		options transport.TLSOptions
		client  *tls.Config
		ok      bool
		version uint16
		alpn    string
	}{
		{"newest", plain, &tls.Config{}, true, tls.VersionTLS13, ""},
		{"1.2", plain, &tls.Config{MaxVersion: tls.VersionTLS12}, true, tls.VersionTLS12, ""},
		{"1.1", plain, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false, 0, ""},
		{"1.2 where 1.3 is asked", only13, &tls.Config{MaxVersion: tls.VersionTLS12}, false, 0, ""},
		{"1.3 where 1.3 is asked", only13, &tls.Config{}, true, tls.VersionTLS13, ""},
		{"ALPN", plain, &tls.Config{NextProtos: []string{"x", "mqtt"}}, true, tls.VersionTLS13, "mqtt"},
		{"ALPN of somebody else", plain, &tls.Config{NextProtos: []string{"x-amzn-mqtt-ca"}}, true, tls.VersionTLS13, ""},
		{"certificate not asked for", plain, &tls.Config{Certificates: []tls.Certificate{bad}}, true, tls.VersionTLS13, ""},
		{"certificate required", require, &tls.Config{Certificates: []tls.Certificate{good}}, true, tls.VersionTLS13, ""},
		{"certificate required, none", require, &tls.Config{}, false, 0, ""},
		{"certificate required, of another CA", require, &tls.Config{Certificates: []tls.Certificate{bad}}, false, 0, ""},
		{"certificate requested", request, &tls.Config{Certificates: []tls.Certificate{good}}, true, tls.VersionTLS13, ""},
		{"certificate requested, none", request, &tls.Config{}, true, tls.VersionTLS13, ""},
		{"certificate requested, of another CA", request, &tls.Config{Certificates: []tls.Certificate{bad}}, false, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, transport.Options{Type: transport.TLS, TLS: tt.options}, patience)
			config := tt.client.Clone()
			config.RootCAs, config.ServerName = ca.Pool(), "localhost"
			if c := tt.client.Certificates; len(c) > 0 { // also where the server would not take it
				config.Certificates = nil
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c[0], nil }
			}
			c := tls.Client(s.dial(), config)
			err := c.Handshake()
			r := s.next()
			if (r.err == nil) != tt.ok {
				t.Fatalf("client: %v, server: %v", err, r.err)
			}
			if !tt.ok {
				return
			}
			state := c.ConnectionState()
			if state.Version != tt.version || state.NegotiatedProtocol != tt.alpn {
				t.Errorf("version %x, ALPN %q", state.Version, state.NegotiatedProtocol)
			}
			echo(t, c, r.conn)
		})
	}
}

// echo sends bytes both ways.
func echo(t *testing.T, a, b net.Conn) {
	t.Helper()
	for _, message := range []string{"x", strings.Repeat("0123456789", 20_000)} {
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			wrote := make(chan error, 1)
			go func() {
				_, err := way[0].Write([]byte(message))
				wrote <- err
			}()
			got := make([]byte, len(message))
			if _, err := io.ReadFull(way[1], got); err != nil || string(got) != message {
				t.Fatalf("%d bytes: %v", len(message), err)
			}
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	ca := testcert.NewCA(t)
	cert, other := ca.Issue("a"), ca.Issue("b")
	for _, tt := range []struct {
		name    string
		options transport.TLSOptions
		want    string
	}{
		{"no certificate", transport.TLSOptions{Cert: "none.pem", Key: cert.Key}, "none.pem"},
		{"another's key", transport.TLSOptions{Cert: cert.Cert, Key: other.Key}, "does not match"},
		{"no CA", transport.TLSOptions{Cert: cert.Cert, Key: cert.Key, ClientCA: "none.pem"}, "none.pem"},
		{"a key for a CA", transport.TLSOptions{Cert: cert.Cert, Key: cert.Key, ClientCA: cert.Key}, "no certificate in it"},
		{"a version", transport.TLSOptions{Cert: cert.Cert, Key: cert.Key, MinVersion: "1.1"}, "1.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := transport.Listen(transport.Options{Type: transport.TLS, Address: "127.0.0.1:0", TLS: tt.options})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Files that change are used without a restart; a pair that does not match leaves the old one in use.
func TestTLSFilesChange(t *testing.T) {
	t.Parallel()
	ca := testcert.NewCA(t)
	files, second, third := ca.Issue("first"), ca.Issue("second"), ca.Issue("third")
	s := serve(t, transport.Options{Type: transport.TLS, TLS: transport.TLSOptions{Cert: files.Cert, Key: files.Key}}, patience)
	serves := func() string {
		t.Helper()
		c := tls.Client(s.dial(), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		s.conn()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	await := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(patience); serves() != want; <-time.After(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("serves %q, want %q", serves(), want)
			}
		}
	}
	await("first")
	testcert.Replace(t, files.Cert, second.Cert)
	for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		if got := serves(); got != "first" {
			t.Fatalf("serves %q with half of a new pair", got)
		}
	}
	testcert.Replace(t, files.Key, second.Key)
	await("second")
	testcert.Replace(t, files.Key, third.Key)
	testcert.Replace(t, files.Cert, third.Cert)
	await("third")
}

// A client whose authority is no longer accepted does not come in again, not even on a session ticket.
func TestTLSClientCAChanges(t *testing.T) {
	t.Parallel()
	ca, successor := testcert.NewCA(t), testcert.NewCA(t)
	cert, client := ca.Issue("server"), ca.Issue("client")
	file := filepath.Join(t.TempDir(), "clients.pem")
	testcert.Replace(t, file, ca.File)
	s := serve(t, transport.Options{Type: transport.TLS, TLS: transport.TLSOptions{Cert: cert.Cert, Key: cert.Key, ClientCA: file}}, patience)
	config := &tls.Config{
		RootCAs: ca.Pool(), ServerName: "localhost",
		Certificates: []tls.Certificate{client.Load(t)}, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	accepted := func() bool {
		c := tls.Client(s.dial(), config)
		_ = c.Handshake() // with 1.3 the client is done before it is refused
		r := s.next()
		if r.err == nil {
			echo(t, c, r.conn) // the ticket comes with the first bytes
		}
		return r.err == nil
	}
	if !accepted() {
		t.Fatal("refused")
	}
	testcert.Replace(t, file, successor.File)
	for deadline := time.Now().Add(patience); accepted(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("still accepted")
		}
	}
}

// Whoever stalls in a handshake keeps nobody waiting and is gone when its time is up.
func TestTLSSlowHandshake(t *testing.T) {
	ca := testcert.NewCA(t)
	cert := ca.Issue("server")
	const within = 300 * time.Millisecond
	for _, kind := range []string{transport.TLS, transport.WSS} {
		s := serve(t, transport.Options{Type: kind, TLS: transport.TLSOptions{Cert: cert.Cert, Key: cert.Key}}, within)
		for _, sent := range []string{"", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} { // nothing; the beginning of a ClientHello
			c := s.dial()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if r := s.next(); r.err == nil || r.took < within || r.took > within+2*time.Second {
				t.Errorf("%s: %v after %v", kind, r.err, r.took)
			}
		}
		c := s.dial()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if r := s.next(); r.err == nil || r.took > within {
			t.Errorf("%s: %v after %v", kind, r.err, r.took)
		}
	}
}

// Closing a connection whose peer does not read takes no longer than its deadline says.
func TestTLSCloseIsBounded(t *testing.T) {
	ca := testcert.NewCA(t)
	cert := ca.Issue("server")
	for _, kind := range []string{transport.TLS, transport.WS} {
		s := serve(t, transport.Options{Type: kind, TLS: transport.TLSOptions{Cert: cert.Cert, Key: cert.Key}}, patience)
		if kind == transport.TLS {
			c := tls.Client(s.dial(), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
			go c.Handshake()
		} else {
			upgrade(t, s, "/mqtt", "mqtt")
		}
		conn := s.conn()
		done := make(chan error, 1)
		go func() {
			for {
				if _, err := conn.Write(make([]byte, 64<<10)); err != nil {
					done <- err
					return
				}
			}
		}()
		select {
		case err := <-done:
			t.Fatalf("%s: the peer takes everything: %v", kind, err)
		case <-time.After(100 * time.Millisecond):
		}
		start := time.Now()
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		_ = conn.SetWriteDeadline(start.Add(200 * time.Millisecond))
		<-done
		_ = conn.Close()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: closed after %v", kind, took)
		}
	}
}
