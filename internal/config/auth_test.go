package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Who may come without a name, by what is set and which listener it is.
func TestAnonymous(t *testing.T) {
	const (
		local     = "- {name: a, address: 'localhost:1'}\n"
		anywhere  = "- {name: a, address: ':1'}\n"
		certified = "- {name: a, type: tls, address: ':1', cert: x, key: x, client_ca: x}\n"
	)
	for _, tt := range []struct {
		auth, listener string
		want           bool
	}{
		{"{}", local, true},
		{"{}", certified, true},
		{"{anonymous: true}", anywhere, true},
		{"{users_file: x}", local, false},
		{"{users_file: x}", anywhere, false},
		{"{users_file: x}", certified, false},
		{"{users_file: x, anonymous: true}", anywhere, true},
		{"{users_file: x, anonymous: loopback}", local, true},
		{"{users_file: x, anonymous: loopback}", anywhere, false},
		{"{users_file: x, anonymous: loopback}", certified, true},
		{"{users_file: x, anonymous: false}", local, false},
		{"{tls_identity: cn}", certified, false},
	} {
		c, err := load(t, "auth: "+tt.auth+"\nlisteners:\n"+tt.listener, nil)
		if err != nil {
			t.Errorf("%s %s: %v", tt.auth, tt.listener, err)
			continue
		}
		if got := !c.Broker(nil).Listeners[0].NoAnonymous; got != tt.want {
			t.Errorf("%s %s: %v", tt.auth, tt.listener, got)
		}
	}
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules")
	if err := os.WriteFile(rules, []byte("anyone allow both a/#\nanyone allow both a#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, "auth: {users_file: "+dir+"/none, acl_file: "+rules+"}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	err = c.CheckFiles()
	if _, ok := AsError(err); !ok || !strings.Contains(err.Error(), "auth.users_file: ") || !strings.Contains(err.Error(), rules+":2: ") {
		t.Errorf("got %v", err)
	}
	if err := Default().CheckFiles(); err != nil {
		t.Error(err)
	}
}
