package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker"
	"github.com/edgemq/edgemq/broker/transport"
)

// Listener is one address that clients connect to.
type Listener struct {
	Name           string
	Type           string
	Address        string
	MaxConnections int
	MaxPacket      int64
	ConnectTimeout time.Duration
	Cert           string
	Key            string
	ClientCA       string
	ClientCert     string
	TLSMin         string
	Path           string
	Origins        []string
	Mode           string
}

const wantAddress = "host:port, as in 127.0.0.1:1883"

var (
	secure = []string{transport.TLS, transport.WSS}
	web    = []string{transport.WS, transport.WSS}
)

var listenerKeys = []itemKey[Listener]{
	{"name", "", text{want: "letters, digits, - and _", check: checkName}, func(l *Listener) any { return &l.Name }, "for logs and metrics", nil},
	{
		"type", "tcp",
		words{transport.TCP, transport.TLS, transport.WS, transport.WSS, transport.Unix},
		func(l *Listener) any { return &l.Type },
		"tcp, tls, ws (WebSocket), wss (WebSocket through TLS) or unix", nil,
	},
	{"address", "", text{want: wantAddress, check: notEmpty}, func(l *Listener) any { return &l.Address }, "host:port, where port 0 takes a free one; of unix the path of the socket", nil},
	{"max_connections", "0", number{0, 10_000_000}, func(l *Listener) any { return &l.MaxConnections }, "0: no limit of its own", nil},
	{"max_packet", "0", size{kib, 256*mib - 1, true}, func(l *Listener) any { return &l.MaxPacket }, "0: limits.max_packet", nil},
	{"connect_timeout", "0", span{100 * time.Millisecond, 10 * time.Minute, true}, func(l *Listener) any { return &l.ConnectTimeout }, "0: limits.connect_timeout; handshakes of TLS and WebSocket count", nil},
	{"cert", "''", anyText, func(l *Listener) any { return &l.Cert }, "tls, wss: PEM file with the certificate and its chain; looked at for changes when clients come", secure},
	{"key", "''", anyText, func(l *Listener) any { return &l.Key }, "tls, wss: PEM file with its key", secure},
	{"client_ca", "''", anyText, func(l *Listener) any { return &l.ClientCA }, "tls, wss: PEM file with the authorities that sign clients' certificates; without it none are asked for", secure},
	{
		"client_cert", "require",
		words{transport.CertRequire, transport.CertRequest},
		func(l *Listener) any { return &l.ClientCert },
		"tls, wss, with client_ca: require a certificate, or request one and do without", secure,
	},
	{"tls_min", "'1.2'", words{"1.2", "1.3"}, func(l *Listener) any { return &l.TLSMin }, "tls, wss: the oldest version of TLS, 1.2 or 1.3", secure},
	{"path", "/mqtt", text{want: "a path, as in /mqtt", check: checkPath}, func(l *Listener) any { return &l.Path }, "ws, wss: where clients connect; anything else is 404", web},
	{
		"origins", "[]",
		texts{want: "hosts", like: "www.example.com, *.example.org", check: notEmpty},
		func(l *Listener) any { return &l.Origins },
		"ws, wss: hosts of web pages that may connect, as in www.example.com:8080 or *.example.com; '*' is all. A page of\n" +
			"    the same host always may, and so may what is no web page", web,
	},
	{"mode", "'0660'", text{want: "octal permissions in quotes, as in '0660'", check: checkMode}, func(l *Listener) any { return &l.Mode }, "unix: permissions of the socket", []string{transport.Unix}},
}

// anyText is a text that may be empty.
var anyText = text{want: "a file", check: func(string) error { return nil }}

// broker is the listener as the broker takes it.
func (l *Listener) broker() broker.Listener {
	mode, _ := strconv.ParseUint(l.Mode, 8, 32) // Load has checked it
	return broker.Listener{
		Name: l.Name, Type: l.Type, Address: l.Address,
		MaxConnections: l.MaxConnections, MaxPacket: int(l.MaxPacket), ConnectTimeout: l.ConnectTimeout,
		TLS:  transport.TLSOptions{Cert: l.Cert, Key: l.Key, ClientCA: l.ClientCA, ClientCert: l.ClientCert, MinVersion: l.TLSMin},
		Path: l.Path, Origins: l.Origins,
		Mode: fs.FileMode(mode),
	}
}

// listeners checks what the settings of each listener say together.
func (l *loader) listeners(c *Config) {
	for i := range c.Listeners {
		listener := &c.Listeners[i]
		at := fmt.Sprintf("listeners[%d]", i)
		if !l.sound(at) {
			continue
		}
		problem := func(key, message string) { l.problem("listeners", at+key, message) }
		for _, k := range listenerKeys {
			if len(k.only) > 0 && !slices.Contains(k.only, listener.Type) && !k.isDefault(listener) {
				problem("."+k.name, fmt.Sprintf("a listener of type %s has none: it is for %s", listener.Type, strings.Join(k.only, " and ")))
			}
		}
		if listener.Type != transport.Unix {
			if err := checkAddress(listener.Address); err != nil {
				problem(".address", fmt.Sprintf("%q is not possible: %v; it must be %s", listener.Address, err, wantAddress))
				continue
			}
		}
		if slices.Contains(secure, listener.Type) && (listener.Cert == "" || listener.Key == "") {
			problem("", "a listener of type "+listener.Type+" needs cert and key")
		}
		if !l.sound("auth.users_file", "auth.anonymous", "auth.tls_identity") {
			continue
		}
		switch named := c.Auth.UsersFile != "" || c.Auth.TLSIdentity == IdentityCN && listener.ClientCA != ""; {
		case named || c.Auth.anonymous(listener) || c.Auth.Anonymous == AnonymousFalse && !c.Auth.users():
		case c.Auth.Anonymous == AnonymousFalse || c.Auth.Anonymous == AnonymousAuto && c.Auth.users():
			problem("", "nobody could connect, as no name is enough: set auth.users_file (edgemq passwd FILE USER writes it), or auth.anonymous to loopback or true")
		default:
			problem(".address", fmt.Sprintf("%s can be reached from other machines, and anybody there could connect without a password: "+
				"set auth.users_file (edgemq passwd FILE USER writes it), or auth.anonymous to true if that is meant, or listen on 127.0.0.1", listener.Address))
		}
	}
	l.sharedAddresses(c)
	for i, listener := range c.Listeners {
		l.maxPacket("listeners", fmt.Sprintf("listeners[%d].max_packet", i), listener.MaxPacket, c)
	}
}

// sharedAddresses refuses a second listener on an address, which could not be opened.
func (l *loader) sharedAddresses(c *Config) {
	seen := map[string]int{}
	for i, listener := range c.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		if _, port, _ := net.SplitHostPort(listener.Address); port == "0" && listener.Type != transport.Unix || !l.sound(at) {
			continue
		}
		if first, taken := seen[listener.Address]; taken {
			l.problem("listeners", at+".address", fmt.Sprintf("%q is taken by [%d]", listener.Address, first))
			continue
		}
		seen[listener.Address] = i
	}
}

// local reports whether only this machine can reach the listener.
func (l *Listener) local() bool { return l.Type == transport.Unix || loopback(l.Address) }

// certified reports whether every client shows a certificate.
func (l *Listener) certified() bool {
	return slices.Contains(secure, l.Type) && l.ClientCA != "" && l.ClientCert == transport.CertRequire
}

// loopback reports whether only this machine can reach the address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func checkAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("that is not an address")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("port %q is not from 0 to 65535", port)
	}
	return nil
}

func checkPath(s string) error {
	if !strings.HasPrefix(s, "/") || strings.ContainsAny(s, "?# ") {
		return errors.New("that is not a path")
	}
	return nil
}

func checkMode(s string) error {
	// YAML reads an unquoted 0660 as the number 432, which is another mode.
	if n, err := strconv.ParseUint(s, 8, 32); err != nil || n > 0o777 || !strings.HasPrefix(s, "0") || len(s) < 3 {
		return errors.New("these are not permissions")
	}
	return nil
}
