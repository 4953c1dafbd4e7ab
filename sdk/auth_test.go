package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

// guarded is a broker with users, whose passwords are their names, and rules.
type guarded struct {
	*testbroker.InProcess
	users, rules string
}

func runGuarded(t *testing.T, users, rules string) *guarded {
	t.Helper()
	g := &guarded{users: filepath.Join(t.TempDir(), "users"), rules: filepath.Join(t.TempDir(), "rules")}
	g.write(t, users, rules)
	g.InProcess = testbroker.Run(t, testbroker.Options{Set: []string{"auth.users_file=" + g.users, "auth.acl_file=" + g.rules}})
	return g
}

func (g *guarded) write(t *testing.T, users, rules string) {
	t.Helper()
	var lines strings.Builder
	for _, u := range strings.Fields(users) {
		hash, err := bcrypt.GenerateFromPassword([]byte(u), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		lines.WriteString(u + ":" + string(hash) + "\n")
	}
	if err := errors.Join(os.WriteFile(g.users, []byte(lines.String()), 0o600), os.WriteFile(g.rules, []byte(rules), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// A client that the broker does not want is told so, at once, and does not try again and again.
func TestLoginRefused(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann", "anyone allow both #")
	for name, opts := range map[string][]sdk.Option{
		"nobody":         nil,
		"wrong password": {sdk.WithCredentials("ann", "bob")},
		"unknown user":   {sdk.WithCredentials("bob", "bob"), sdk.WithPatience()},
		"wrong token":    {sdk.WithCredentialsFunc(func() (string, string) { return "ann", "old token" })},
	} {
		p := newProxy(t, g.Addr)
		_, err := sdk.Dial(patience(t), p.Addr, opts...)
		if !errors.Is(err, sdk.ErrRefused) || p.Connections() != 1 {
			t.Errorf("%s: %v, %d connections", name, err, p.Connections())
		}
		if err != nil && strings.Contains(err.Error(), "old token") {
			t.Errorf("the error tells the password: %v", err)
		}
		if _, err := sdk.DialBrokers(patience(t), sdk.Addresses(p.Addr), opts...); !errors.Is(err, sdk.ErrRefused) {
			t.Errorf("%s, brokers: %v", name, err)
		}
	}
	for _, address := range []string{g.Addr, "mqtt://ann:ann@" + g.Addr} {
		c, err := sdk.Dial(patience(t), address, sdk.WithCredentials("ann", "ann"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := sdk.Dial(patience(t), "mqtt://ann:ann@"+g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
}

// Who is shut out while connected is told, tries seldom, keeps what it has to send, and goes on when it is let in again.
func TestLoginRefusedLater(t *testing.T) {
	const rules = "anyone allow both #\n"
	g := runGuarded(t, "ann", rules)
	p := newProxy(t, g.Addr)
	states := make(chan sdk.State, 1000)
	c := dial(t, p.Addr, "c", sdk.WithCredentials("ann", "ann"), sdk.WithBackoff(time.Millisecond, 300*time.Millisecond),
		sdk.WithStateFunc(func(s sdk.State) { states <- s }))
	<-states
	g.write(t, "bob", rules)
	if err := g.ReloadAuth(); err != nil {
		t.Fatal(err)
	}
	for s := range states {
		if s.Connected {
			t.Fatal("it was let in")
		}
		if errors.Is(s.Err, sdk.ErrRefused) {
			break
		}
	}
	pr, err := c.Producer().SendAsync(patience(t), sdk.NewMessage("T", []byte("kept")))
	if err != nil {
		t.Fatal(err)
	}
	before, start := p.Connections(), time.Now()
	eventually(t, "it tries again", func() bool { return p.Connections() >= before+2 })
	if each := time.Since(start) / time.Duration(p.Connections()-before); each < 75*time.Millisecond { // half of the longest pause, at least
		t.Fatalf("it tries every %v", each)
	}
	g.write(t, "ann bob", rules)
	if err := g.ReloadAuth(); err != nil {
		t.Fatal(err)
	}
	if _, err := pr.Wait(patience(t)); err != nil {
		t.Fatal(err)
	}
}

// What rules do not allow fails, and nothing else does. These are the rules that docs/SDK.md names.
func TestRules(t *testing.T) {
	t.Parallel()
	g := runGuarded(t, "ann bob", `
user ann allow both      shop/#
user ann allow both      $queue/jobs
user ann allow subscribe $queue/jobs-dead
anyone   allow subscribe edgemq/replies/%c
user ann allow publish   edgemq/replies/+
user ann allow both      edgemq/groups/g/shop/+
user ann allow subscribe $queue/+
user ann allow both      edgemq/cursors/g/#
user bob allow publish   $queue/jobs
`)
	quick := sdk.WithBackoff(time.Millisecond, 5*time.Millisecond)
	ann := dial(t, g.Addr, "a", sdk.WithCredentials("ann", "ann"))
	lost := make(chan error, 100)
	bob := dial(t, g.Addr, "b", sdk.WithCredentials("bob", "bob"), quick, sdk.WithStateFunc(func(s sdk.State) {
		if !s.Connected {
			lost <- s.Err
		}
	}))
	ctx := patience(t)
	r, err := bob.Producer().Send(ctx, sdk.NewQueueMessage("jobs", []byte("dig")))
	if err != nil || r.Offset == 0 { // where one's own messages are needs no rule
		t.Fatal(r, err)
	}
	var se *sdk.SendError
	if _, err := bob.Producer().Send(ctx, sdk.NewMessage("shop/x", nil)); !errors.Is(err, sdk.ErrRefused) || !errors.As(err, &se) || se.Known != sdk.Refused || se.Code != packet.CodeNotAuthorized {
		t.Fatalf("bob publishes: %v", err)
	}
	if len(lost) > 0 {
		t.Fatalf("a refusal costs the connection: %v", <-lost)
	}
	if err := bob.PullConsumer().AttachQueue(ctx, "jobs"); !errors.Is(err, sdk.ErrInUse) {
		t.Fatalf("bob attaches: %v", err)
	}
	if err := bob.PullConsumer(sdk.WithShared()).AttachQueue(ctx, "jobs"); !errors.Is(err, sdk.ErrRefused) {
		t.Fatalf("bob attaches with others: %v", err)
	}
	if _, err := bob.Subscribe(ctx, "shop/#"); !errors.Is(err, sdk.ErrRefused) {
		t.Fatalf("bob subscribes: %v", err)
	}
	q := attach(t, ann, "jobs", []string{"shop/#"})
	if got := bodies(poll(t, q)); !slices.Equal(got, []string{"dig"}) {
		t.Fatalf("got %q", got)
	}
	if err := ann.PullConsumer().AttachQueue(ctx, "jobs", "other/#"); err == nil {
		t.Fatal("ann binds what she may not read")
	}
	_ = q.Close()
	answering, stop := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() {
		done <- ann.Respond(answering, sdk.FromQueue("jobs"), func(_ context.Context, d *sdk.Delivery) ([]byte, error) {
			return append(d.Body(), '!'), nil
		})
	}()
	if d, err := bob.Request(ctx, sdk.NewQueueMessage("jobs", []byte("ask"))); err != nil || string(d.Body()) != "ask!" {
		t.Fatal(d, err)
	}
	var l tally
	go func() {
		done <- ann.PushConsumer(l.handle).Run(answering, sdk.FromPartitions(sdk.Partitions{Topic: "shop", N: 2, Group: "g"}))
	}()
	p := ann.Producer(sdk.WithPartitions(2))
	for i := range 4 {
		send(t, p, sdk.NewMessage("shop", fmt.Append(nil, i)))
	}
	eventually(t, "the group has all", func() bool { return len(l.all()) == 4 })
	stop()
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	if err := ann.Cursors("g").Commit(ctx, "shop", 0, 5); err != nil {
		t.Fatal(err)
	}
}
