package transport

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// TLSOptions are files, which are read again when they change, and rules.
type TLSOptions struct {
	Cert, Key  string // PEM: the certificate with its chain, and its key
	ClientCA   string // PEM: who signs clients' certificates; "" means clients are asked for none
	ClientCert string // CertRequire or CertRequest; "" means CertRequire. It counts with ClientCA only
	MinVersion string // "1.2" or "1.3"; "" means "1.2"
}

// What clients must show if there is a ClientCA.
const (
	CertRequire = "require" // a certificate signed by it
	CertRequest = "request" // that, or none
)

// looked is how old the knowledge of the files may be.
const looked = time.Second

// certificates serves TLS with what the files say now. Files are looked at when a client comes, once a second at most:
// no signal to send, nothing to watch, and it works for files that are replaced by renaming as well as for links that are
// turned (as certbot and Kubernetes do).
type certificates struct {
	opt     TLSOptions
	alpn    string
	logger  *slog.Logger
	base    *tls.Config // has forClient
	current atomic.Pointer[configs]

	mu    sync.Mutex
	next  time.Time // of a look
	files [3]stamp  // as last tried, well or not
}

// configs are what the files said: for clients that offer the ALPN protocol, and for the others. To offer protocols to a
// client that offers different ones would end the handshake.
type configs struct{ plain, alpn *tls.Config }

// stamp tells a file from another at the same name.
type stamp struct {
	info os.FileInfo // nil if there is none
}

func (s stamp) same(t stamp) bool {
	if s.info == nil || t.info == nil {
		return s.info == t.info
	}
	return os.SameFile(s.info, t.info) && s.info.ModTime().Equal(t.info.ModTime()) && s.info.Size() == t.info.Size()
}

// Check loads the files once, to see whether a listener could use them.
func (o TLSOptions) Check() error {
	_, err := (&certificates{opt: o}).config()
	return err
}

func loadCertificates(o TLSOptions, web bool, logger *slog.Logger) (*certificates, error) {
	c := &certificates{opt: o, alpn: "mqtt", logger: logger}
	if web {
		c.alpn = "http/1.1" // browsers offer h2, which has no upgrade
	}
	c.files = c.stamps()
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	c.current.Store(config)
	c.base = &tls.Config{GetConfigForClient: c.forClient, MinVersion: config.plain.MinVersion}
	return c, nil
}

func (c *certificates) stamps() (out [3]stamp) {
	for i, name := range []string{c.opt.Cert, c.opt.Key, c.opt.ClientCA} {
		if name != "" {
			out[i].info, _ = os.Stat(name) // what is not there shows when it is read
		}
	}
	return out
}

// load reads the files.
func (c *certificates) load() (*configs, error) {
	plain, err := c.config()
	if err != nil {
		return nil, err
	}
	alpn := plain.Clone()
	alpn.NextProtos = []string{c.alpn}
	return &configs{plain, alpn}, nil
}

func (c *certificates) config() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.opt.Cert, c.opt.Key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	config := &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   tls.VersionTLS12,
		// Writes are batches of up to 64 KiB already: records of 1.4 KiB would make 50 system calls of one.
		DynamicRecordSizingDisabled: true,
	}
	switch c.opt.MinVersion {
	case "", "1.2":
	case "1.3":
		config.MinVersion = tls.VersionTLS13
	default:
		return nil, fmt.Errorf("TLS version %q is not 1.2 or 1.3", c.opt.MinVersion)
	}
	if c.opt.ClientCA == "" {
		return config, nil
	}
	pem, err := os.ReadFile(c.opt.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("load client CA: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load client CA: %s: no certificate in it", c.opt.ClientCA)
	}
	// A ticket would let a client in whose certificate is not accepted any more.
	config.SessionTicketsDisabled = true
	switch c.opt.ClientCert {
	case "", CertRequire:
		config.ClientAuth = tls.RequireAndVerifyClientCert
	case CertRequest:
		config.ClientAuth = tls.VerifyClientCertIfGiven
	default:
		return nil, fmt.Errorf("client certificate %q is not require or request", c.opt.ClientCert)
	}
	return config, nil
}

// reload loads the files again if they have changed. What cannot be used (a certificate whose key is yet to come) leaves
// things as they are, until the files change again.
func (c *certificates) reload() {
	if !c.mu.TryLock() {
		return // somebody is at it
	}
	defer c.mu.Unlock()
	now := time.Now()
	if now.Before(c.next) {
		return
	}
	c.next = now.Add(looked)
	files := c.stamps() // before they are read: a change in between is seen next time
	if slices.EqualFunc(files[:], c.files[:], stamp.same) {
		return
	}
	c.files = files
	config, err := c.load()
	if err != nil {
		c.logger.Error("certificate files have changed and cannot be used, going on with the old ones", "err", err)
		return
	}
	c.current.Store(config)
	c.logger.Info("certificates loaded again", "path", c.opt.Cert)
}

// forClient is asked at every handshake.
func (c *certificates) forClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c.reload()
	now := c.current.Load()
	if slices.Contains(hello.SupportedProtos, c.alpn) {
		return now.alpn, nil
	}
	return now.plain, nil
}

func (c *certificates) handshake(raw net.Conn) (*tls.Conn, error) {
	conn := tls.Server(raw, c.base)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	return conn, nil
}
