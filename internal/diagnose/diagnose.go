// Package diagnose says what to change when a connection to a broker fails. Brokers close a connection that does not speak what they
// expect, so the error alone is often no more than EOF: then it looks at what the port does speak.
package diagnose

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// patience is how long a look at the port takes at most.
const patience = 2 * time.Second

// Hint is what to try, given how a connection to u failed, as a sentence without a full stop; "" if there is nothing to say. It may take some
// seconds and open connections to the port of its own, unless ctx has ended.
func Hint(ctx context.Context, u *url.URL, err error) string {
	if hint := byError(u, err); hint != "" || u.Scheme == "unix" || !mute(err) || ctx.Err() != nil {
		return hint
	}
	return byLooking(ctx, u)
}

// WebHint is Hint for a request to the admin API at u.
func WebHint(ctx context.Context, u *url.URL, err error) string {
	if !mute(err) || !answers(ctx, u.Host) {
		return ""
	}
	secure := handshakes(ctx, u.Host)
	switch {
	case !answersHTTP(ctx, u.Host, secure):
		return "what listens there does not speak HTTP, and may be a listener for MQTT: the admin API is where admin.listen says (127.0.0.1:18830 by default), or at admin.sock in the data directory"
	case secure && u.Scheme == "http":
		return "what listens there speaks TLS: try https://" + u.Host
	case !secure && u.Scheme == "https":
		return "what listens there speaks no TLS: try http://" + u.Host
	}
	return ""
}

// byError knows the errors that say what is wrong, if not what to do.
func byError(u *url.URL, err error) string {
	text := err.Error()
	var host x509.HostnameError
	var dns *net.DNSError
	switch {
	case errors.As(err, &host):
		names := strings.Join(append(host.Certificate.DNSNames, addresses(host.Certificate.IPAddresses)...), ", ")
		return fmt.Sprintf("connect to a name that the broker's certificate is for (%s)", names)
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "the broker's certificate is signed by nobody that is trusted here: name the authority's certificate (edgemq pub, sub and bench: --cafile; SDK: WithTLS)"
	case strings.Contains(text, "certificate required"), strings.Contains(text, "tls: bad certificate"), strings.Contains(text, "tls: unknown certificate authority"):
		return "the broker wants a certificate of yours, from an authority that it trusts (edgemq pub, sub and bench: --cert and --key; SDK: WithTLS)"
	case strings.Contains(text, "private key does not match"):
		return "the certificate and the key are not a pair (edgemq pub, sub and bench: --cert and --key)"
	case strings.Contains(text, "certificate has expired"):
		return "the broker's certificate has expired, or a clock is wrong"
	case strings.Contains(text, "but got 404"):
		return fmt.Sprintf("WebSocket clients are served at another path than %s; edgemq's is /mqtt unless the listener's path says otherwise", u.Path)
	case strings.Contains(text, "but got 403"):
		return "the listener refuses pages of this origin (its key origins)"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "there is no such host: see to its name"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens there: is the broker running, and on this address?"
	case errors.Is(err, fs.ErrNotExist) && u.Scheme == "unix":
		return "there is no such socket: is the broker running, with a listener of type unix?"
	}
	return ""
}

func addresses(ips []net.IP) (out []string) {
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

// mute tells whether an error may come from speaking the wrong protocol. The libraries in between keep no error's type, so its words count.
func mute(err error) bool {
	text := err.Error()
	for _, words := range []string{
		"EOF", "reset by peer", "broken pipe", "timeout", "deadline exceeded", "within", "ended the connection", "malformed HTTP", "TLS handshake", "HTTP response to HTTPS",
		"status code", "no MQTT over WebSocket", "tls: ", "packet", "unexpected",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// byLooking finds out what is spoken on u's port.
func byLooking(ctx context.Context, u *url.URL) string {
	if !answers(ctx, u.Host) {
		return "nothing answers there: is the address right, and does everything in between let connections through?"
	}
	var at string
	secure := handshakes(ctx, u.Host)
	web := answersHTTP(ctx, u.Host, secure)
	switch {
	case secure && web:
		at = "wss"
	case secure:
		at = "mqtts"
	case web:
		at = "ws"
	default:
		at = "mqtt"
	}
	if at == scheme(u.Scheme) {
		if at == "mqtt" || at == "mqtts" {
			return "it may take another version of MQTT only (edgemq pub, sub and bench: --mqtt), want a user's name, or have all the connections that it takes"
		}
		return ""
	}
	says := map[string]string{
		"wss":   "what listens there speaks HTTP through TLS",
		"mqtts": "what listens there speaks TLS",
		"ws":    "what listens there speaks HTTP, as WebSocket listeners do, and no TLS",
		"mqtt":  "what listens there speaks neither TLS nor HTTP",
	}[at]
	other := url.URL{Scheme: at, Host: u.Host}
	if web {
		other.Path = "/mqtt"
		if scheme(u.Scheme) == "ws" || scheme(u.Scheme) == "wss" {
			other.Path = u.Path
		}
	}
	return fmt.Sprintf("%s: try %s", says, &other)
}

// scheme is the one of its names that byLooking uses.
func scheme(s string) string {
	switch s {
	case "tcp":
		return "mqtt"
	case "ssl", "tls":
		return "mqtts"
	}
	return s
}

// answers reports whether somebody accepts connections there.
func answers(ctx context.Context, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// handshakes reports whether TLS is spoken there. Whose certificate it is does not matter, nor whether we would be let in.
func handshakes(ctx context.Context, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err == nil {
		_ = conn.Close()
		return true
	}
	return strings.Contains(err.Error(), "remote error: tls") // an alert
}

// answersHTTP reports whether HTTP is spoken there.
func answersHTTP(ctx context.Context, host string, secure bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var conn net.Conn
	var err error
	if secure {
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		conn, err = d.DialContext(ctx, "tcp", host)
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", host)
	}
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // it was only looked at
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return false
	}
	b := make([]byte, 5)
	n, _ := conn.Read(b)
	return bytes.Equal(b[:n], []byte("HTTP/"))
}
