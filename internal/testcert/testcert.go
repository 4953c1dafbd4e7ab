// Package testcert makes certificates for tests.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	File string // PEM
}

// NewCA makes an authority; its file is in a directory of the test's.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{t: t, File: filepath.Join(t.TempDir(), "ca.pem")}
	var der []byte
	der, ca.key = sign(t, &x509.Certificate{
		Subject:  pkix.Name{CommonName: "edgemq test CA " + rand.Text()[:8]},
		IsCA:     true,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true,
	}, nil, nil)
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write(t, ca.File, "CERTIFICATE", der)
	return ca
}

// Pool holds the authority.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Pair is a certificate and its key.
type Pair struct{ Cert, Key string } // PEM files

// Issue makes a certificate for 127.0.0.1, ::1 and localhost, good for servers and clients, with the common name.
func (ca *CA) Issue(name string) Pair {
	ca.t.Helper()
	der, key := sign(ca.t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.cert, ca.key)
	dir := ca.t.TempDir()
	p := Pair{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	write(ca.t, p.Cert, "CERTIFICATE", der)
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatal(err)
	}
	write(ca.t, p.Key, "PRIVATE KEY", b)
	return p
}

// Load reads the pair.
func (p Pair) Load(t testing.TB) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Replace puts the file in place of another, by renaming a copy, as careful tools do.
func Replace(t testing.TB, old, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(old+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(old+".new", old)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func sign(t testing.TB, c, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if parent == nil {
		parent, signer = c, key
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func write(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
