package config

import (
	"errors"
	"fmt"
	"os"

	"github.com/edgemq/edgemq/broker/auth"
)

// The values of Auth.TLSIdentity.
const (
	IdentityNone = "none"
	IdentityCN   = "cn"
)

// users reports whether clients can have names.
func (a *Auth) users() bool { return a.UsersFile != "" || a.TLSIdentity == IdentityCN }

// anonymous reports whether a client may come to the listener without a name.
func (a *Auth) anonymous(l *Listener) bool {
	switch a.Anonymous {
	case AnonymousTrue:
		return true
	case AnonymousFalse:
		return false
	case AnonymousAuto:
		if a.users() {
			return false
		}
	}
	return l.local() || l.certified()
}

// CheckFiles reads what the settings name and a broker would read at its start: users and rules. Its error is an *Error.
func (c *Config) CheckFiles() error {
	out := &Error{}
	check := func(key, path string, parse func(b []byte) error) {
		if path == "" {
			return
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = parse(b)
		}
		if e, ok := errors.AsType[*auth.FileError](err); ok {
			for _, p := range e.Problems {
				out.Problems = append(out.Problems, Problem{Where: fmt.Sprintf("%s:%d", path, p.Line), Message: p.Message})
			}
		} else if err != nil {
			out.Problems = append(out.Problems, Problem{Key: key, Message: err.Error()})
		}
	}
	check("auth.users_file", c.Auth.UsersFile, func(b []byte) error {
		_, err := auth.ParseUsers(c.Auth.UsersFile, b)
		return err
	})
	check("auth.acl_file", c.Auth.ACLFile, func(b []byte) error {
		_, err := auth.ParseRules(c.Auth.ACLFile, b)
		return err
	})
	if len(out.Problems) > 0 {
		return out
	}
	return nil
}
