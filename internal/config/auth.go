package config

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/edgemq/edgemq/broker/auth"
)

// The values of Auth.TLSIdentity.
const (
	IdentityNone = "none"
	IdentityCN   = "cn"
)

// clientIDs are the values of Auth.ClientIDs.
var clientIDs = map[string]auth.IDs{"owner": auth.OwnerIDs, "name": auth.NamedIDs, "any": auth.AnyIDs}

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

// files reads what the settings name and a broker would read at its start: users, rules and certificates.
func (l *loader) files(c *Config) {
	check := func(key, path string, parse func(b []byte) error) {
		if path == "" || !l.sound(key) {
			return
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = parse(b)
		}
		if e, ok := errors.AsType[*auth.FileError](err); ok {
			for _, p := range e.Problems {
				l.problems = append(l.problems, Problem{Where: fmt.Sprintf("%s:%d", path, p.Line), Message: p.Message})
			}
		} else if err != nil {
			l.problem(key, key, err.Error())
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
	for i, listener := range c.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		if !slices.Contains(secure, listener.Type) || !l.sound(at) {
			continue
		}
		o := listener.broker().TLS
		if err := o.Check(); err != nil {
			l.problem("listeners", at, err.Error())
		}
	}
}
