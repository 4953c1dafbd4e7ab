// Package auth knows who may connect and who may do what: users with their passwords (a users file), and rules about topics
// and filters (a rules file). It reads both, and answers questions; it knows no connections.
//
// A users file has lines of name:hash, with hashes of bcrypt. A rules file has lines of
//
//	user NAME | client ID | anyone    allow | deny    publish | subscribe | both    FILTER
//
// of which the first that matches decides; what none matches is denied. docs/OPERATIONS.md has the whole.
package auth

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// Options are the files. Both may be missing.
type Options struct {
	Users string // path of the users file; "" means that there are no users
	Rules string // path of the rules file; "" means that everybody may do everything
	IDs   IDs
}

// IDs says who may use a client id.
type IDs byte

// The values of IDs.
const (
	OwnerIDs IDs = iota // while it has a session, the user whose session that is
	NamedIDs            // likewise, and users' ids begin with their names
	AnyIDs              // whoever comes
)

// Separators are what may follow a user's name in its client ids.
const Separators = "-_.:/"

// Authority answers according to what the files said when they were last read. Its methods are safe for concurrent use. The
// nil *Authority knows no users and allows everything.
type Authority struct {
	opt   Options
	now   atomic.Pointer[tables]
	slots chan struct{} // of those who compute a hash
}

type tables struct {
	users *Users
	rules *Rules
}

var (
	// ErrCredentials means that there is no such user or that the password is another one.
	ErrCredentials = errors.New("auth: user name or password is wrong")
	// ErrBusy means that too many want to be let in at once.
	ErrBusy = errors.New("auth: too many logins at once")
)

// maxWait is how long a login waits for its turn to have the password looked at.
const maxWait = 10 * time.Second

// New reads the files. An error about what is in them is a *FileError.
func New(o Options) (*Authority, error) {
	// Hashing takes a core for its time: half of them stay with those who are connected already.
	a := &Authority{opt: o, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	if err := a.Reload(); err != nil {
		return nil, err
	}
	return a, nil
}

// Reload reads the files again. With an error everything stays as it was.
func (a *Authority) Reload() error {
	t := &tables{}
	var errs []error
	if a.opt.Users != "" {
		b, err := os.ReadFile(a.opt.Users)
		if err == nil {
			t.users, err = ParseUsers(a.opt.Users, b)
		}
		errs = append(errs, err)
	}
	if a.opt.Rules != "" {
		b, err := os.ReadFile(a.opt.Rules)
		if err == nil {
			t.rules, err = ParseRules(a.opt.Rules, b)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	a.now.Store(t)
	return nil
}

// Rules returns the rules in force, nil if everything is allowed. The same pointer means the same rules.
func (a *Authority) Rules() *Rules {
	if a == nil {
		return nil
	}
	return a.now.Load().rules
}

// HasUsers tells whether there is a users file.
func (a *Authority) HasUsers() bool { return a != nil && a.opt.Users != "" }

// Owned tells whether a session is one user's alone.
func (a *Authority) Owned() bool { return a != nil && a.opt.IDs != AnyIDs }

// MayUse tells whether a client id is one that a user may have; user is "" for a client without a name.
func (a *Authority) MayUse(user, client string) bool {
	if a == nil || a.opt.IDs != NamedIDs || user == "" {
		return true
	}
	rest, ok := strings.CutPrefix(client, user)
	return ok && (rest == "" || strings.IndexByte(Separators, rest[0]) >= 0)
}

// Counts tells how many users and rules there are.
func (a *Authority) Counts() (users, rules int) {
	t := a.now.Load()
	return t.users.Len(), t.rules.Len()
}

// Login checks a user's password and returns a proof of it, which Holds can look at later. It takes the time of one hash,
// unless the password is the one that was right last time, and waits while others are at it.
func (a *Authority) Login(user string, password []byte) (proof []byte, err error) {
	users := a.now.Load().users
	if hash := users.remembered(user, password); hash != nil {
		return hash, nil
	}
	wait := time.NewTimer(maxWait)
	defer wait.Stop()
	select {
	case a.slots <- struct{}{}:
	case <-wait.C:
		return nil, ErrBusy
	}
	defer func() { <-a.slots }()
	if hash := users.remembered(user, password); hash != nil { // of many with one name, the first has done it for all
		return hash, nil
	}
	if hash := users.check(user, password); hash != nil {
		return hash, nil
	}
	return nil, ErrCredentials
}

// Holds tells whether a proof is still good: the user is there and its password is the same.
func (a *Authority) Holds(user string, proof []byte) bool {
	return string(a.now.Load().users.hash(user)) == string(proof)
}

// Problem is something that is wrong in a file.
type Problem struct {
	Line    int
	Message string // with what would be right
}

// FileError lists all that is wrong in a file.
type FileError struct {
	Path     string
	Problems []Problem
}

func (e *FileError) Error() string {
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, fmt.Sprintf("%s:%d: %s", e.Path, p.Line, p.Message))
	}
	return strings.Join(lines, "\n")
}

// eachLine calls fn for the lines of a file that say something, and collects what it complains about.
func eachLine(path string, b []byte, fn func(n int, line string) error) error {
	e := &FileError{Path: path}
	n := 0
	for line := range strings.SplitSeq(string(b), "\n") {
		n++
		line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
		if line == "" || line[0] == '#' {
			continue
		}
		if err := fn(n, line); err != nil {
			e.Problems = append(e.Problems, Problem{n, err.Error()})
		}
	}
	if len(e.Problems) > 0 {
		return e
	}
	return nil
}
