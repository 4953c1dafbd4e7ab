package broker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// guarded is a broker with users, whose passwords are their names, and rules.
type guarded struct {
	*testbroker.InProcess
	users, rules string
	hashes       map[string][]byte // by name:password
}

func runGuarded(t *testing.T, users, rules string, set ...string) *guarded {
	t.Helper()
	g := &guarded{hashes: map[string][]byte{}, users: filepath.Join(t.TempDir(), "users"), rules: filepath.Join(t.TempDir(), "rules")}
	g.write(t, users, rules)
	g.InProcess = testbroker.Run(t, testbroker.Options{Set: append([]string{"auth.users_file=" + g.users, "auth.acl_file=" + g.rules}, set...)})
	return g
}

// write writes the files. One of the users may be name:password.
func (g *guarded) write(t *testing.T, users, rules string) {
	t.Helper()
	var lines strings.Builder
	for _, u := range strings.Fields(users) {
		name, password, ok := strings.Cut(u, ":")
		if !ok {
			password = name
		}
		if g.hashes[u] == nil {
			hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
			must(t, err)
			g.hashes[u] = hash
		}
		lines.WriteString(name + ":" + string(g.hashes[u]) + "\n")
	}
	must(t, os.WriteFile(g.users, []byte(lines.String()), 0o600))
	must(t, os.WriteFile(g.rules, []byte(rules), 0o600))
}

// change writes the files and has them read.
func (g *guarded) change(t *testing.T, users, rules string) {
	t.Helper()
	g.write(t, users, rules)
	must(t, g.ReloadAuth())
}

// as is the CONNECT of a user.
func as(c *packet.Connect, user string) *packet.Connect {
	c.HasUsername, c.Username, c.HasPassword, c.Password = true, user, true, []byte(user)
	return c
}

func TestLogins(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann", "anyone allow both #")
	open := runGuarded(t, "ann", "anyone allow both #", "auth.anonymous=true")
	for _, tt := range []struct {
		name      string
		open      bool
		c         packet.Connect
		code, old byte
	}{
		{"right", false, packet.Connect{HasUsername: true, Username: "ann", HasPassword: true, Password: []byte("ann")}, 0, 0},
		{"wrong password", false, packet.Connect{HasUsername: true, Username: "ann", HasPassword: true, Password: []byte("bob")}, 0x86, 4},
		{"no password", false, packet.Connect{HasUsername: true, Username: "ann"}, 0x86, 4},
		{"unknown user", false, packet.Connect{HasUsername: true, Username: "bob", HasPassword: true, Password: []byte("ann")}, 0x86, 4},
		{"empty user", false, packet.Connect{HasUsername: true, HasPassword: true, Password: []byte("ann")}, 0x86, 4},
		{"nobody", false, packet.Connect{}, 0x87, 5},
		{"nobody where anybody may", true, packet.Connect{}, 0, 0},
		{"wrong password where anybody may", true, packet.Connect{HasUsername: true, Username: "ann", HasPassword: true, Password: []byte("bob")}, 0x86, 4},
	} {
		versions(t, func(t *testing.T, v packet.Version) {
			addr, c, want := g.Addr, tt.c, tt.code
			if tt.open {
				addr = open.Addr
			}
			if v != packet.V5 {
				want = tt.old
			}
			c.Clean = true
			r := testbroker.DialRaw(t, addr, v)
			ack := r.Connect(&c)
			if ack.Code != want || (ack.ReasonString != "") != (want != 0 && v == packet.V5) {
				t.Errorf("%s: CONNACK %+v, want 0x%02X", tt.name, ack, want)
			}
			if want != 0 {
				r.ExpectClosed()
			}
		})
	}
	if st := g.Sessions().Stats(); st.LoginsRefused != 10 {
		t.Errorf("%d logins were refused", st.LoginsRefused)
	}
}

const annsRules = `
user ann deny  both      a/secret/#
user ann allow both      a/#
user ann allow both      $queue/q
user ann allow subscribe $queue/read
user ann allow publish   $aws/x
`

// What may not be published is refused, whatever way leads to it, and told so as far as the version can; at once after the rules
// change too. Alias-only PUBLISHes are no way round.
func TestPublishByRules(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann root", annsRules+"user root allow both #\nuser root allow both $aws/#\nuser root allow both $queue/+\n")
	sub := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(clean("sub"), "root"))
	for _, f := range []string{"#", "$aws/#", "$queue/q", "$queue/other"} {
		sub.Subscribe(f, 1)
	}
	connect := func(v packet.Version) *testbroker.Raw {
		return testbroker.ConnectRaw(t, g.Addr, v, as(clean(""), "ann"))
	}
	envelope := string(packet.AppendEnvelope(nil, &packet.Outgoing{Payload: []byte("x")}))
	for topic, payload := range map[string]string{
		"a": "x", "a/b": "x", "$queue/q": "x", "$aws/x": "x", "$v5/a": envelope, "$delayed/0/a": "x", "$delayed/0/$queue/q": "x", "$v5/$queue/q": envelope,
	} {
		if code := connect(packet.V5).Publish(topic, payload); code != 0 {
			t.Errorf("%s: 0x%02X", topic, code)
		}
		if d := sub.Delivery(); d.Payload != "x" {
			t.Errorf("%s: %+v", topic, d)
		} else {
			sub.Ack(d)
		}
	}
	// That others may publish to a topic, and did, makes no difference.
	root := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(clean("root"), "root"))
	for _, topic := range []string{"a/secret", "a/secret/b", "b", "$aws/y"} {
		if code := root.Publish(topic, "x"); code != 0 {
			t.Errorf("%s by root: 0x%02X", topic, code)
		}
		sub.Ack(sub.Delivery())
	}
	for topic, payload := range map[string]string{
		"a/secret": "x", "a/secret/b": "x", "b": "x", "$queue/other": "x", "$queue/read": "x", "$aws/y": "x", "$v5/b": envelope, "$delayed/0/b": "x",
		"$delayed/0/$queue/other": "x", "$v5/$delayed/0/b": envelope, "$queue/other/$nack": "1",
	} {
		c := connect(packet.V5)
		if code := c.Publish(topic, payload); code != packet.CodeNotAuthorized {
			t.Errorf("%s: PUBACK 0x%02X", topic, code)
		}
		if code := publish2(c, packet.V5, 99, topic, payload, false); code != packet.CodeNotAuthorized {
			t.Errorf("%s: PUBREC 0x%02X", topic, code)
		}
		c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: topic, Payload: []byte(payload)}))
		if code := c.ExpectClosed(); code != int(packet.CodeNotAuthorized) {
			t.Errorf("%s: DISCONNECT 0x%02X", topic, code)
		}
		old := connect(packet.V311)
		old.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{Topic: topic, Payload: []byte(payload)})) // dropped
		old.Ping()
		old.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{Topic: topic, QoS: 1, PacketID: 1, Payload: []byte(payload)}))
		old.ExpectClosed()
	}
	nothing(t, sub)
	if code := connect(packet.V5).Publish("$queue/read/$nack", "1"); code != packet.CodeImplementation {
		t.Errorf("a refusal by one who may read the queue: 0x%02X", code)
	}
	// An alias stands for its topic, before and after the rules change.
	c := connect(packet.V5)
	aliased := func(topic string) byte {
		id := c.NextID()
		c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: topic, Alias: 1, QoS: 1, PacketID: id, Payload: []byte("x")}))
		return c.ExpectAck(packet.TypePuback, id)
	}
	if first, second := aliased("b"), aliased(""); first != packet.CodeNotAuthorized || second != packet.CodeNotAuthorized {
		t.Errorf("by alias: 0x%02X, 0x%02X", first, second)
	}
	g.change(t, "ann root", "user ann allow publish b\nuser root allow both #\nuser root allow both $aws/#\nuser root allow both $queue/+\n")
	if code := aliased(""); code != 0 {
		t.Errorf("by alias, allowed since: 0x%02X", code)
	}
	sub.Ack(sub.Delivery())
	g.change(t, "ann root", "user ann allow publish a\n")
	if code := aliased(""); code != packet.CodeNotAuthorized {
		t.Errorf("by alias, denied since: 0x%02X", code)
	}
	if code := c.Publish("b", "x"); code != packet.CodeNotAuthorized {
		t.Errorf("denied since: 0x%02X", code)
	}
}

// A filter is granted if all that it can match is allowed, under every name it may go by.
func TestSubscribeByRules(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann", annsRules+"user ann allow subscribe fine/#\nanyone allow subscribe allowed\n")
	for filter, want := range map[string]bool{
		"a/b": true, "a/b/#": true, "fine/#": true, "fine/+/x": true, "allowed": true, "$queue/q": true, "$queue/q/fine/#": true, "$queue/read": true,
		"$share/g/fine/#": true, "$s/earliest/fine/x": true, "$exclusive/fine/x": true, "$v5/fine/x": true, "$v5/$queue/q": true, "$v5/$share/g/fine/x": true,
		"a/#": false, "a/secret": false, "a/+": false, "#": false, "+/b": false, "allowed/secret": false, "b": false, "$SYS/#": false,
		"$queue/other": false, "$queue/other/fine/#": false, "$queue/q/b": false, "$queue/q/#": false, "$queue/q/a/secret/x": false, "$share/g/#": false,
		"$share/g/a/#": false, "$s/earliest/#": false, "$exclusive/b": false, "$v5/b": false, "$v5/$s/earliest/b": false, "$aws/x": false,
	} {
		versions(t, func(t *testing.T, v packet.Version) {
			c := testbroker.ConnectRaw(t, g.Addr, v, as(clean(""), "ann"))
			code := c.Subscribe(filter, 1)
			switch refused := code >= 0x80; {
			case refused == want:
				t.Errorf("%s: 0x%02X", filter, code)
			case refused && v == packet.V5 && code != packet.CodeNotAuthorized, refused && v != packet.V5 && code != 0x80:
				t.Errorf("%s: 0x%02X", filter, code)
			}
		})
	}
	// The property stream-offset makes a replay of it, and no way round.
	c := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(clean(""), "ann"))
	c.Send(packet.AppendSubscribe(nil, packet.V5, &packet.Subscribe{
		PacketID: 1, Filters: []packet.Subscription{{Filter: "b"}}, User: []packet.UserProperty{{Name: "stream-offset", Value: "earliest"}},
	}))
	if ack, err := packet.ParseSuback(packet.V5, c.Expect(packet.TypeSuback)); err != nil || ack.Codes[0] != packet.CodeNotAuthorized || ack.ReasonString != `not allowed to subscribe to "b"` {
		t.Errorf("SUBACK %+v %v", ack, err)
	}
	// A queue that may be read is not to be unbound by everybody who may read it.
	if code := c.Subscribe("$queue/q/fine/#", 1); code != 1 {
		t.Fatalf("bind: 0x%02X", code)
	}
	g.change(t, "ann", "user ann allow subscribe $queue/q\n")
	unsubscribe(t, c, "$queue/q/fine/#", packet.CodeNotAuthorized)
}

// A Will is its user's publish: looked at in the CONNECT, and again when it is published.
func TestWillByRules(t *testing.T) {
	t.Parallel()
	const rules = "user ann allow publish will/c\nuser sub allow subscribe will/#\n"
	g := runGuarded(t, "ann sub", rules)
	sub := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(clean("sub"), "sub"))
	sub.Subscribe("will/#", 1)
	versions(t, func(t *testing.T, v packet.Version) {
		want := packet.CodeNotAuthorized
		if v != packet.V5 {
			want = 5
		}
		r := testbroker.DialRaw(t, g.Addr, v)
		if ack := r.Connect(as(willOf("other", packet.Connect{Clean: true}), "ann")); ack.Code != want {
			t.Errorf("CONNACK 0x%02X", ack.Code)
		}
		r.ExpectClosed()
		c := testbroker.ConnectRaw(t, g.Addr, v, as(willOf("c", packet.Connect{Clean: true, Will: &packet.Will{QoS: 1}}), "ann"))
		c.Close()
		receive(t, sub, 1, "gone", false)
	})
	c := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(willOf("c", packet.Connect{Clean: true, SessionExpiry: 100, Will: &packet.Will{Delay: 1}}), "ann"))
	before := g.Sessions().Stats().Denied
	g.change(t, "ann sub", "user sub allow subscribe will/#\n")
	c.Close()
	for deadline := time.Now().Add(testbroker.Patience); g.Sessions().Stats().Denied == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the Will was not looked at again")
		}
	}
	nothing(t, sub)
}

// After the rules or users change, connections that do not fit them any more end, and what they may not have is gone.
func TestConnectionsAfterReload(t *testing.T) {
	t.Parallel()
	const all = "anyone allow both #\n"
	g := runGuarded(t, "ann bob eve pub", all)
	pub := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(clean("pub"), "pub"))
	conns := map[string]*testbroker.Raw{}
	for _, name := range []string{"ann", "bob", "eve"} {
		conns[name] = testbroker.ConnectRaw(t, g.Addr, packet.V5, as(keeper(name), name))
		conns[name].Subscribe("a/#", 1)
		conns[name].Subscribe("b", 1)
	}
	g.change(t, "ann bob:other pub", "user ann deny both a/secret\n"+all)
	for _, c := range conns { // ann's filter, bob's password, eve
		if code := c.ExpectClosed(); code != int(packet.CodeNotAuthorized) {
			t.Errorf("DISCONNECT 0x%02X", code)
		}
	}
	pub.Publish("a/x", "not for ann any more")
	pub.Publish("b", "still")
	ann := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(keeper("ann"), "ann"))
	if d := receive(t, ann, 1, "still", false); d.Topic != "b" {
		t.Errorf("%+v", d)
	}
	nothing(t, ann)
	if code := ann.Subscribe("a/#", 1); code != packet.CodeNotAuthorized {
		t.Errorf("SUBACK 0x%02X", code)
	}
	// Files that are wrong change nothing.
	must(t, os.WriteFile(g.rules, []byte("nonsense\n"), 0o600))
	if err := g.ReloadAuth(); err == nil || !strings.Contains(err.Error(), "rules:1: ") {
		t.Errorf("got %v", err)
	}
	ann.Publish("b", "x")
	receive(t, ann, 1, "x", false)
}

// A session is its user's: another neither takes it over nor ends it, nor raises its epoch, be its client connected or not. One of nobody is anybody's, and what is over is
// nobody's.
func TestSessionsBelongToUsers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(set ...string) *testbroker.InProcess {
		users := filepath.Join(t.TempDir(), "users")
		(&guarded{hashes: map[string][]byte{}, users: users, rules: users + "-rules"}).write(t, "ann bob", "")
		return testbroker.Run(t, testbroker.Options{Dir: dir, Set: append([]string{"auth.users_file=" + users, "auth.anonymous=true"}, set...)})
	}
	b := run()
	refused := func(t *testing.T, v packet.Version, c *packet.Connect, code, old byte) {
		t.Helper()
		if v != packet.V5 {
			code = old
		}
		r := testbroker.DialRaw(t, b.Addr, v)
		if ack := r.Connect(c); ack.Code != code || (ack.ReasonString != "") != (v == packet.V5) {
			t.Errorf("CONNACK %+v, want 0x%02X", ack, code)
		}
		r.ExpectClosed()
	}
	epoch := func(c *packet.Connect, n string) *packet.Connect {
		c.User = []packet.UserProperty{{Name: "@Epoch", Value: n}}
		return c
	}
	others := func(t *testing.T, v packet.Version, id string) {
		t.Helper()
		refused(t, v, as(keeper(id), "bob"), packet.CodeNotAuthorized, 5)
		refused(t, v, as(clean(id), "bob"), packet.CodeNotAuthorized, 5)
		refused(t, v, keeper(id), packet.CodeNotAuthorized, 5) // nobody in particular
		if v == packet.V5 {
			refused(t, v, epoch(as(clean(id), "bob"), "9"), packet.CodeNotAuthorized, 5)
		}
	}
	versions(t, func(t *testing.T, v packet.Version) {
		id := fmt.Sprint("c", v)
		ann := testbroker.ConnectRaw(t, b.Addr, v, as(keeper(id), "ann"))
		ann.Subscribe("a", 1)
		others(t, v, id)
		ann.Ping()
		ann.Close()
		others(t, v, id)
	})
	b.Stop()
	b = run()
	versions(t, func(t *testing.T, v packet.Version) {
		id := fmt.Sprint("c", v)
		others(t, v, id)
		ann := testbroker.DialRaw(t, b.Addr, v)
		hello := as(keeper(id), "ann")
		if v == packet.V5 {
			epoch(hello, "1")
		}
		if ack := ann.Connect(hello); ack.Code != 0 || !ack.SessionPresent {
			t.Errorf("CONNACK %+v", ack)
		}
		testbroker.ConnectRaw(t, b.Addr, v, clean("pub")).Publish("a", "x")
		ann.Ack(ann.Delivery())
		testbroker.ConnectRaw(t, b.Addr, v, as(clean(id), "ann")).Close()  // ends it
		testbroker.ConnectRaw(t, b.Addr, v, as(keeper(id), "bob")).Close() // so this one is bob's
		refused(t, v, as(keeper(id), "ann"), packet.CodeNotAuthorized, 5)
		testbroker.ConnectRaw(t, b.Addr, v, keeper("nobody"+id)).Close()
		testbroker.ConnectRaw(t, b.Addr, v, as(keeper("nobody"+id), "ann")).Close()
		others(t, v, "nobody"+id)
	})
}

// Where users' client ids begin with their names, others are not valid.
func TestClientIDsBeginWithNames(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann", "anyone allow both #", "auth.client_ids=name", "auth.anonymous=true")
	versions(t, func(t *testing.T, v packet.Version) {
		for _, id := range []string{"ann", "ann-1", "ann/pump", ""} {
			testbroker.ConnectRaw(t, g.Addr, v, as(clean(id), "ann")).Close()
		}
		testbroker.ConnectRaw(t, g.Addr, v, clean("anybody")).Close()
		want := byte(packet.CodeClientIDInvalid)
		if v != packet.V5 {
			want = 2
		}
		for _, id := range []string{"anna", "bob", "bob-ann"} {
			if ack := testbroker.DialRaw(t, g.Addr, v).Connect(as(clean(id), "ann")); ack.Code != want {
				t.Errorf("%q: CONNACK %+v", id, ack)
			}
		}
	})
}

// Another user who comes with a client id gets of the session's subscriptions those that are allowed to it, and nothing that
// was on its way for the others.
func TestSessionOfAnotherUser(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann bob pub", "user ann allow both #\nuser pub allow both #\nuser bob allow subscribe b/#\n", "auth.client_ids=any")
	versions(t, func(t *testing.T, v packet.Version) {
		pub := testbroker.ConnectRaw(t, g.Addr, packet.V5, as(clean("pub"), "pub"))
		for _, qos := range []byte{1, 2} {
			ann := testbroker.ConnectRaw(t, g.Addr, v, as(keeper("c"), "ann"))
			ann.Subscribe("a/#", qos)
			ann.Subscribe("b/#", qos)
			ann.Subscribe("$share/g/a/+", qos)
			ann.Subscribe("$s/latest/a/y", qos)
			publish2(pub, packet.V5, 1, "a/x", "secret", false)
			ack(pub, packet.V5, packet.TypePubrel, 1)
			pub.ExpectAck(packet.TypePubcomp, 1)
			ann.Delivery()
			ann.Close()
			pub.Publish("a/y", "secret")
			pub.Publish("b/y", "for both")
			bob := testbroker.ConnectRaw(t, g.Addr, v, as(keeper("c"), "bob"))
			for done := false; !done; { // a PUBREL is no secret
				frame := bob.Next()
				if packet.TypeOf(frame) != packet.TypePublish {
					continue
				}
				d := bob.Parse(frame)
				if done = d.Payload == "for both"; !done {
					t.Errorf("QoS %d: bob got %+v", qos, d)
				}
			}
			for {
				frame, ok := bob.NextWithin(nothingFor)
				if !ok {
					break
				}
				if packet.TypeOf(frame) == packet.TypePublish {
					t.Errorf("QoS %d: bob got %+v", qos, bob.Parse(frame))
				}
			}
			bob.Close()
			testbroker.ConnectRaw(t, g.Addr, v, as(clean("c"), "ann")).Close()
		}
	})
}
