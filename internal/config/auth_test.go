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

// With Files, what the settings name is read, and what is wrong there is said beside what is wrong with the settings.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules")
	if err := os.WriteFile(rules, []byte("anyone allow both a/#\nanyone allow both a#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "my.yaml")
	yaml := "auth: {acl_file: " + rules + "}\nlog:\n  level: loud\nlisteners:\n- name: a\n  address: localhost:1\n  type: tls\n  cert: " + dir + "/none\n  key: x\n"
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(Source{File: file, Env: []string{"EDGEMQ_AUTH_USERS_FILE=" + dir + "/nobody"}, Files: true})
	if _, ok := AsError(err); !ok {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		file + ":3: log.level: ", file + ":5: listeners[0]: load certificate: open " + dir + "/none: no such file", rules + ":2: ",
		"environment variable EDGEMQ_AUTH_USERS_FILE: auth.users_file: open " + dir + "/nobody: no such file",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say %q:\n%v", want, err)
		}
	}
	if _, err := Load(Source{Env: []string{}, Files: true}); err != nil {
		t.Error(err)
	}
}
