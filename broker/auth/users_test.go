package auth

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"
)

func TestMain(m *testing.M) {
	cost = bcrypt.MinCost
	goleak.VerifyTestMain(m)
}

// quick is a users file whose hashes cost little.
func quick(t *testing.T, userAndPassword ...string) string {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("# who\n\n")
	for i := 0; i < len(userAndPassword); i += 2 {
		hash, err := bcrypt.GenerateFromPassword([]byte(userAndPassword[i+1]), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(userAndPassword[i] + ":" + string(hash) + "\r\n")
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, b.Bytes(), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLogin(t *testing.T) {
	long := strings.Repeat("x", MaxPassword)
	path := quick(t, "ann", "secret", "b:ob", "", "long", long)
	a, err := New(Options{Users: path})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from memory
		for _, tt := range []struct {
			user, password string
			want           bool
		}{
			{"ann", "secret", true},
			{"ann", "Secret", false},
			{"ann", "secret ", false},
			{"ann", "", false},
			{"b:ob", "", true},
			{"long", long, true},
			{"long", long + "x", false}, // bcrypt would not see the difference
			{"bob", "secret", false},
			{"", "", false},
		} {
			proof, err := a.Login(tt.user, []byte(tt.password))
			if (err == nil) != tt.want || !tt.want && !errors.Is(err, ErrCredentials) {
				t.Errorf("%q with %q: %v", tt.user, tt.password, err)
			}
			if tt.want && !a.Holds(tt.user, proof) {
				t.Errorf("%q: the proof does not hold", tt.user)
			}
		}
	}
}

// After a file has changed, what it said before does not count, and a file that is wrong changes nothing.
func TestReload(t *testing.T) {
	path := quick(t, "ann", "secret", "bob", "secret")
	a, err := New(Options{Users: path})
	if err != nil {
		t.Fatal(err)
	}
	ann, err := a.Login("ann", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	bob, err := a.Login("bob", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if err := SetPassword(path, "ann", []byte("other")); err != nil {
		t.Fatal(err)
	}
	if err := DeleteUser(path, "bob"); err != nil {
		t.Fatal(err)
	}
	if !a.Holds("ann", ann) || !a.Holds("bob", bob) {
		t.Error("it took effect before Reload")
	}
	if err := a.Reload(); err != nil {
		t.Fatal(err)
	}
	if a.Holds("ann", ann) || a.Holds("bob", bob) {
		t.Error("an old proof holds")
	}
	for user, password := range map[string]string{"ann": "secret", "bob": "secret"} {
		if _, err := a.Login(user, []byte(password)); !errors.Is(err, ErrCredentials) {
			t.Errorf("%s: %v", user, err)
		}
	}
	if _, err := a.Login("ann", []byte("other")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("ann:plain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Reload(); err == nil {
		t.Error("a plain password was accepted")
	}
	if _, err := a.Login("ann", []byte("other")); err != nil {
		t.Error(err)
	}
}

// A user that does not exist takes as long as one that does.
func TestUnknownUsersTakeAsLong(t *testing.T) {
	a, err := New(Options{Users: quick(t, "ann", "secret")})
	if err != nil {
		t.Fatal(err)
	}
	fastest := func(user string) time.Duration {
		least := time.Hour
		for range 10 {
			start := time.Now()
			if _, err := a.Login(user, []byte("wrong")); err == nil {
				t.Fatal("let in")
			}
			least = min(least, time.Since(start))
		}
		return least
	}
	if known, unknown := fastest("ann"), fastest("bob"); unknown < known/3 || unknown > known*3 {
		t.Errorf("a known user takes %v, an unknown one %v", known, unknown)
	}
}

// Many clients with one name and password, after a restart say, cost one hash and not one each.
func TestManyOfOneUser(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), 6)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte("ann:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{Users: path})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := a.Login("ann", []byte("wrong")); !errors.Is(err, ErrCredentials) {
		t.Fatal(err)
	}
	one := time.Since(start)
	start = time.Now()
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if _, err := a.Login("ann", []byte("secret")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 50*one {
		t.Errorf("200 logins took %v, a hash %v", took, one)
	}
}

func TestUsersInvalid(t *testing.T) {
	good := strings.TrimSpace(string(mustRead(t, quick(t, "ann", "x"))))
	_, good, _ = strings.Cut(good, "\n\n")
	hash := strings.TrimPrefix(good, "ann:")
	for _, tt := range []struct{ line, say string }{
		{"ann", "name:hash"},
		{":" + hash, "is empty"},
		{"ann:secret", "edgemq passwd"},
		{"ann:$7$101$abc$def", "no bcrypt hash"},
		{"ann:" + hash[:50], "no bcrypt hash"},
		{"ann:" + strings.Replace(hash, "$04$", "$20$", 1), "cost 20"},
		{"a\x01b:" + hash, "control characters"},
		{"\xff:" + hash, "UTF-8"},
		{"ann :" + hash, "space"},
		{"first:" + hash, "twice, first on line 1"},
	} {
		_, err := ParseUsers("users", []byte("first:"+hash+"\n"+tt.line+"\n"))
		if err == nil || !strings.Contains(err.Error(), tt.say) || !strings.HasPrefix(err.Error(), "users:2: ") {
			t.Errorf("%q: %v, want %q", tt.line, err, tt.say)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: the password is in it", err)
		}
	}
	for _, minor := range []string{"$2a$", "$2b$", "$2y$"} {
		if _, err := ParseUsers("users", []byte("ann:"+minor+hash[4:])); err != nil {
			t.Errorf("%s: %v", minor, err)
		}
	}
}

// Comments, the other users and the file's mode stay; what went wrong leaves the file alone.
func TestSetPassword(t *testing.T) {
	path := quick(t, "ann", "secret", "bob", "secret")
	before := string(mustRead(t, path))
	for name, err := range map[string]error{
		"empty":     SetPassword(path, "ann", nil),
		"long":      SetPassword(path, "ann", bytes.Repeat([]byte("x"), MaxPassword+1)),
		"no name":   SetPassword(path, "", []byte("x")),
		"new line":  SetPassword(path, "x\ny", []byte("x")),
		"a comment": SetPassword(path, "#x", []byte("x")),
		"nobody":    DeleteUser(path, "eve"),
		"no file":   DeleteUser(path+"x", "eve"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if string(mustRead(t, path)) != before {
		t.Error("the file has changed")
	}
	if err := SetPassword(path, "ann", []byte("new")); err != nil {
		t.Fatal(err)
	}
	after := string(mustRead(t, path))
	if !strings.HasPrefix(after, "# who\n\nbob:") || strings.Count(after, "ann:") != 1 {
		t.Errorf("%s", after)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	fresh := filepath.Join(t.TempDir(), "users")
	if err := SetPassword(fresh, "ann", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzUsers(f *testing.F) {
	f.Add([]byte("# x\nann:$2a$04$" + strings.Repeat("a", 53) + "\nbob:$2y$04$" + strings.Repeat("b", 53)))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := ParseUsers("users", b)
		if err != nil {
			return
		}
		for name, hash := range u.hashes { // each is a line that is read the same again
			again, err := ParseUsers("users", []byte(name+":"+string(hash)+"\n"))
			if err != nil || len(again.hashes) != 1 || !bytes.Equal(again.hashes[name], hash) {
				t.Fatalf("%q: %v", name, err)
			}
		}
	})
}
