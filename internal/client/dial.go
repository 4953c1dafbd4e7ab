package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/coder/websocket"
)

// TLS says whom to trust and what to show, for mqtts:// and wss://.
type TLS struct {
	CAFile            string // PEM; "" means the system's authorities
	CertFile, KeyFile string // PEM; "" means none
	Insecure          bool   // any certificate will do
}

// schemes are the ways to a broker and their ports.
var schemes = map[string]string{
	"mqtt": "1883", "tcp": "1883",
	"mqtts": "8883", "ssl": "8883", "tls": "8883",
	"ws": "80", "wss": "443",
	"unix": "",
}

// Secure tells whether an URL's scheme goes through TLS.
func Secure(scheme string) bool {
	switch scheme {
	case "mqtts", "ssl", "tls", "wss":
		return true
	}
	return false
}

// ParseURL reads mqtt://, mqtts://, ws://, wss:// and unix:// URLs, and host:port.
func ParseURL(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "mqtt://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, err
	}
	port, ok := schemes[u.Scheme]
	switch {
	case !ok:
		return nil, fmt.Errorf("%s: only mqtt://, mqtts://, ws://, wss:// and unix:// are known", s)
	case u.Scheme == "unix":
		u.Host, u.Path = "", u.Host+u.Path // unix://a/b is a relative path
		if u.Path == "" {
			return nil, fmt.Errorf("%s: there is no path, as in unix:///run/edgemq.sock", s)
		}
		return u, nil
	case u.Hostname() == "":
		return nil, fmt.Errorf("%s: there is no host", s)
	case u.Port() == "":
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	if strings.HasPrefix(u.Scheme, "ws") && u.Path == "" {
		u.Path = "/mqtt"
	}
	return u, nil
}

// Open opens the bare connection to o.URL, for those who speak MQTT themselves. Of o it uses URL, TLS and Timeout.
func Open(ctx context.Context, o Options) (net.Conn, error) {
	u, err := ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	conn, err := open(ctx, u, &o)
	if err != nil {
		return nil, unreachable(ctx, u, err)
	}
	return conn, nil
}

// Unanswered is the error for a connection to o.URL that Open made and on which no CONNACK came.
func Unanswered(ctx context.Context, o Options, err error) error {
	u, bad := ParseURL(o.URL)
	if bad != nil {
		return bad
	}
	return unreachable(ctx, u, err)
}

// open opens the connection to a broker.
func open(ctx context.Context, u *url.URL, o *Options) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	var config *tls.Config
	if Secure(u.Scheme) {
		var err error
		if config, err = o.TLS.config(u.Hostname()); err != nil {
			return nil, err
		}
	}
	var dialer net.Dialer
	switch u.Scheme {
	case "unix":
		return dialer.DialContext(ctx, "unix", u.Path)
	case "ws", "wss":
		return openWebSocket(ctx, u, config)
	}
	if config != nil {
		d := tls.Dialer{NetDialer: &dialer, Config: config}
		return d.DialContext(ctx, "tcp", u.Host)
	}
	return dialer.DialContext(ctx, "tcp", u.Host)
}

func openWebSocket(ctx context.Context, u *url.URL, config *tls.Config) (net.Conn, error) {
	bare := *u
	bare.User = nil // they are MQTT's, not HTTP's
	ws, _, err := websocket.Dial(ctx, bare.String(), &websocket.DialOptions{
		Subprotocols: []string{"mqtt"},
		HTTPClient: &http.Client{Transport: &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			TLSClientConfig:   config,
			DisableKeepAlives: true, // what is refused leaves nothing behind
		}},
	})
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() == "" {
		return nil, errors.Join(errors.New("what is there speaks no MQTT over WebSocket"), ws.CloseNow())
	}
	ws.SetReadLimit(-1)
	return websocket.NetConn(context.Background(), ws, websocket.MessageBinary), nil
}

// config is the TLS configuration for a server's name.
func (t *TLS) config(name string) (*tls.Config, error) {
	c := &tls.Config{ServerName: name, InsecureSkipVerify: t.Insecure}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
