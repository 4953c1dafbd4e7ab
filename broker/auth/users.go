package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"
)

const (
	// MaxPassword is the length of a password, in bytes: bcrypt looks at no more.
	MaxPassword = 72
	// maxCost bounds what a login may cost: each step up doubles it.
	maxCost = 14
)

// cost is that of new hashes: some 60 ms of one core. Tests have less time.
var cost = 10

// Users are names and hashes of passwords.
type Users struct {
	hashes map[string][]byte
	dummy  []byte // is compared for users that do not exist

	key  [32]byte // of the fingerprints; it lives as long as these users
	mu   sync.Mutex
	last map[string][sha256.Size]byte // fingerprint of the password that was right last time
}

// ParseUsers reads a users file. Errors are *FileError.
func ParseUsers(path string, b []byte) (*Users, error) {
	u := &Users{hashes: map[string][]byte{}, last: map[string][sha256.Size]byte{}}
	lines := map[string]int{}
	most := bcrypt.MinCost
	err := eachLine(path, b, func(n int, line string) error {
		name, hash, err := parseUser(line)
		if err != nil {
			return err
		}
		if first, twice := lines[name]; twice {
			return fmt.Errorf("user %q is there twice, first on line %d: remove one of them", name, first)
		}
		c, err := checkHash(name, hash)
		most = max(most, c)
		lines[name], u.hashes[name] = n, []byte(hash)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(u.hashes) == 0 {
		most = cost
	}
	u.dummy = fmt.Appendf(nil, "$2a$%02d$%s", most, strings.Repeat("a", 53))
	_, _ = rand.Read(u.key[:]) // never fails
	return u, nil
}

// parseUser takes a line apart.
func parseUser(line string) (name, hash string, err error) {
	at := strings.LastIndexByte(line, ':') // there is none in a hash
	if at < 0 {
		return "", "", errors.New("a line is name:hash; edgemq passwd FILE NAME writes it")
	}
	name, hash = line[:at], line[at+1:]
	return name, hash, CheckUser(name)
}

// CheckUser says what a user may not be called.
func CheckUser(name string) error {
	switch {
	case name == "":
		return errors.New("the user's name is empty")
	case !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("user %q: a name is UTF-8 text without control characters", name)
	case strings.TrimSpace(name) != name, name[0] == '#':
		return fmt.Errorf("user %q: a name neither begins or ends with space, nor begins with #", name)
	case len(name) > 65535:
		return errors.New("the user's name is longer than 65535 bytes, which no client can send")
	}
	return nil
}

// checkHash returns what a comparison with the hash costs.
func checkHash(name, hash string) (int, error) {
	c, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil || len(hash) != 60:
		return 0, fmt.Errorf("user %q: that is no bcrypt hash ($2a$, $2b$ or $2y$, as of htpasswd -B): set the password with edgemq passwd FILE %s", name, name)
	case c > maxCost:
		return 0, fmt.Errorf("user %q: the hash has cost %d, and a login would take seconds: set the password again with edgemq passwd FILE %s (at most %d)", name, c, name, maxCost)
	}
	return c, nil
}

// Len returns how many users there are.
func (u *Users) Len() int {
	if u == nil {
		return 0
	}
	return len(u.hashes)
}

// hash returns a user's hash, nil if there is none.
func (u *Users) hash(name string) []byte {
	if u == nil {
		return nil
	}
	return u.hashes[name]
}

// fingerprint stands for a password in memory, so that a client that comes back need not be hashed again. It is keyed, and gone
// with the process.
func (u *Users) fingerprint(name string, password []byte) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, u.key[:])
	_, _ = fmt.Fprintf(h, "%d:%s", len(name), name) // a hash takes all
	_, _ = h.Write(password)
	h.Sum(sum[:0])
	return sum
}

// remembered returns the user's hash if the password was right before.
func (u *Users) remembered(name string, password []byte) []byte {
	hash := u.hash(name)
	if hash == nil {
		return nil
	}
	u.mu.Lock()
	last, ok := u.last[name]
	u.mu.Unlock()
	if sum := u.fingerprint(name, password); !ok || !hmac.Equal(sum[:], last[:]) {
		return nil
	}
	return hash
}

// check compares a password and returns the user's hash if it is right. Unknown users take as long as known ones.
func (u *Users) check(name string, password []byte) []byte {
	hash := u.hash(name)
	against := hash
	switch {
	case u == nil:
		return nil
	case hash == nil:
		against = u.dummy
	}
	err := bcrypt.CompareHashAndPassword(against, password[:min(len(password), MaxPassword)])
	if err != nil || hash == nil || len(password) > MaxPassword {
		return nil
	}
	sum := u.fingerprint(name, password)
	u.mu.Lock()
	u.last[name] = sum
	u.mu.Unlock()
	return hash
}

// SetPassword writes a user's new password, or a new user, to a users file, which is replaced as a whole. A file that does not
// exist is made.
func SetPassword(path, name string, password []byte) error {
	switch {
	case len(password) == 0:
		return errors.New("the password is empty")
	case len(password) > MaxPassword:
		return fmt.Errorf("the password is longer than %d bytes", MaxPassword)
	}
	hash, err := bcrypt.GenerateFromPassword(password, cost)
	if err != nil {
		return err
	}
	_, err = edit(path, name, name+":"+string(hash))
	return err
}

// ErrNoUser means that there is no user of that name.
var ErrNoUser = errors.New("no such user")

// DeleteUser takes a user out of a users file.
func DeleteUser(path, name string) error {
	found, err := edit(path, name, "")
	if err == nil && !found {
		err = fmt.Errorf("%s: %w: %q", path, ErrNoUser, name)
	}
	return err
}

// edit replaces the line of a user, or takes it out if line is "". All others, and comments, stay as they are.
func edit(path, name, line string) (found bool, err error) {
	if err := CheckUser(name); err != nil {
		return false, err
	}
	var was os.FileInfo // nil: it is new
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && line != "":
	case err != nil:
		return false, err
	default:
		if was, err = os.Stat(path); err != nil {
			return false, err
		}
	}
	if _, err := ParseUsers(path, b); err != nil { // to be mended first: it might say the user twice
		return false, err
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(b) == 0 {
		lines = nil
	}
	lines = slices.DeleteFunc(lines, func(l string) bool {
		l = strings.TrimSpace(l)
		if l == "" || l[0] == '#' {
			return false
		}
		other, _, _ := parseUser(l)
		found = found || other == name
		return other == name
	})
	if line != "" {
		lines = append(lines, line)
	} else if !found {
		return false, nil
	}
	return found, replace(path, []byte(strings.Join(lines, "\n")+"\n"), was)
}

// replace writes a file as a whole: whoever reads it finds the old one or the new one, after a crash too.
func replace(path string, b []byte, was os.FileInfo) (err error) {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to // the link stays a link
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if pe := (*os.PathError)(nil); errors.As(err, &pe) { // the name of the temporary file helps nobody
		return fmt.Errorf("write %s: directory %s: %w", path, filepath.Dir(path), pe.Err)
	} else if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the error tells more
		}
	}()
	_, err = f.Write(b)
	if was != nil { // a new one has 0600 already
		err = errors.Join(err, f.Chmod(was.Mode().Perm()), keepOwner(f, was))
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil // it is renamed; some systems cannot open directories
	}
	_ = dir.Sync()
	return dir.Close()
}
