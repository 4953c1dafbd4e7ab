package diagnose_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/diagnose"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/testcert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a user reads who has the wrong kind of URL.
func TestHints(t *testing.T) {
	ca := testcert.NewCA(t)
	pair := ca.Issue("broker")
	tls := func(name, kind, more string) string {
		return `{name: ` + name + `, type: ` + kind + `, address: "127.0.0.1:0", cert: ` + pair.Cert + `, key: ` + pair.Key + more + `}`
	}
	b := testbroker.Run(t, testbroker.Options{Set: []string{`listeners=[{name: a, address: "127.0.0.1:0"}, ` + tls("b", "tls", "") +
		`, {name: c, type: ws, address: "127.0.0.1:0"}, ` + tls("d", "wss", "") + `, ` + tls("e", "tls", ", client_ca: "+ca.File) + `]`}})
	address := func(i int) string { return b.Addrs()[i] }
	plain, secure, web, websecure, certified := address(0), address(1), address(2), address(3), address(4)
	closer := serve(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
	old := serve(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 100))
		_, _ = conn.Write([]byte{0x20, 2, 0, 1})
	})
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close) // after the parallel tests
	for _, tt := range []struct {
		name, url, want string
		silent          bool // it waits for more and answers nothing
	}{
		{"plain to TLS", "mqtt://" + secure, "speaks TLS: try mqtts://" + secure, false},
		{"plain to TLS with certificates", "mqtt://" + certified, "speaks TLS: try mqtts://" + certified, false},
		{"plain to WebSocket", "mqtt://" + web, "and no TLS: try ws://" + web + "/mqtt", true},
		{"plain to secure WebSocket", "mqtt://" + websecure, "speaks HTTP through TLS: try wss://" + websecure + "/mqtt", false},
		{"TLS to plain", "mqtts://" + plain, "speaks neither TLS nor HTTP: try mqtt://" + plain, false},
		{"TLS to WebSocket", "mqtts://" + web, "and no TLS: try ws://" + web + "/mqtt", false},
		{"WebSocket to plain", "ws://" + plain, "speaks neither TLS nor HTTP: try mqtt://" + plain, false},
		{"WebSocket to TLS", "ws://" + secure, "speaks TLS: try mqtts://" + secure, false},
		{"secure WebSocket to WebSocket", "wss://" + web, "and no TLS: try ws://" + web + "/mqtt", false},
		{"another path", "ws://" + web + "/other", "at another path than /other", false},
		{"a web server", "mqtt://" + api.Listener.Addr().String(), "speaks HTTP", true},
		{"nobody's certificate", "mqtts://" + secure, "--cafile", false},
		{"no certificate of ours", "mqtts+any://" + certified, "--cert and --key", false},
		{"nobody", "mqtt://127.0.0.1:1", "is the broker running", false},
		{"no socket", "unix:///nowhere/a.sock", "there is no such socket", false},
		{"who closes at once", "mqtt://" + closer, "another version of MQTT", false},
		{"an old broker", "mqtt://" + old, "--mqtt", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, version := range []client.Version{client.V5, client.V311} {
				o := client.Options{URL: strings.Replace(tt.url, "+any", "", 1), Version: version, ID: "x", CleanStart: true, Timeout: testbroker.Patience}
				if tt.silent {
					o.Timeout = time.Second
				}
				o.TLS.Insecure = o.URL != tt.url
				c, err := client.Dial(t.Context(), o)
				if err == nil {
					_ = c.Close()
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("MQTT %v: %v, want %s", version, err, tt.want)
				}
			}
		})
	}
}

// A mistake on this side is not looked for at the broker's.
func TestKeyOfAnotherCertificate(t *testing.T) {
	err := errors.New("load certificate: tls: private key does not match public key")
	if hint := diagnose.Hint(t.Context(), &url.URL{Scheme: "mqtts", Host: "127.0.0.1:1"}, err); !strings.Contains(hint, "are not a pair") {
		t.Error(hint)
	}
}

// Who has given up waits for no hint.
func TestNoHintAfterTheEnd(t *testing.T) {
	silent := serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := client.Dial(ctx, client.Options{URL: "mqtt://" + silent}); err == nil || time.Since(began) > 900*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// Where nothing answers nothing is said of what is spoken there.
func TestNobodyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	u := &url.URL{Scheme: "mqtts", Host: l.Addr().String()}
	if hint := diagnose.Hint(t.Context(), u, errors.New("dial tcp: i/o timeout")); !strings.Contains(hint, "nothing answers") {
		t.Errorf("%q", hint)
	}
}

// serve hands connections to fn, one after the other, and closes them.
func serve(t *testing.T, fn func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fn(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}
