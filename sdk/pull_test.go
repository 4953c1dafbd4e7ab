package sdk_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/sdk"
)

func TestPullFromTheBeginning(t *testing.T) { // AT-16, AT-19, AT-20
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	p := c.Producer()
	want := numbers("m", 3000)
	sendTo(t, p, "T1", want...)
	sendTo(t, p, "queue:Q1", want...)
	q := attach(t, c, "Q1", []string{"T1"})
	var topic, queue []string
	for _, d := range poll(t, q) {
		if d.Topic() == "T1" {
			topic = append(topic, string(d.Body()))
		} else if d.Queue() == "Q1" {
			queue = append(queue, string(d.Body()))
		}
	}
	if !slices.Equal(topic, want) || !slices.Equal(queue, want) {
		t.Fatalf("got %d of the topic and %d of the queue", len(topic), len(queue))
	}
	sendTo(t, p, "T1", "late")
	d, err := q.PollWait(patience(t))
	if err != nil || string(d.Body()) != "late" {
		t.Fatal(d, err)
	}
	if ds := poll(t, q); ds != nil {
		t.Fatalf("got %q again", bodies(ds))
	}
}

func TestAttachRules(t *testing.T) { // AT-11 to AT-15, AT-17, AT-21
	b := testbroker.Run(t, testbroker.Options{})
	c := dial(t, b.Addr, "c")
	p := c.Producer()
	q := c.PullConsumer()
	if d, err := q.Poll(patience(t)); d != nil || err != nil {
		t.Fatalf("before attaching: %v, %v", d, err)
	}
	sendTo(t, p, "T1", "t1")
	sendTo(t, p, "T2", "t2")
	sendTo(t, p, "queue:Q1", "q1")
	sendTo(t, p, "Q1", "topic of the queue's name")
	sendTo(t, p, "queue:T1", "queue of the topic's name")
	ctx := patience(t)
	if err := q.AttachQueue(ctx, "Q1", "T1", "T1"); err != nil {
		t.Fatal(err)
	}
	if got := bodies(poll(t, q)); !slices.Equal(got, []string{"t1", "q1"}) {
		t.Fatalf("got %q", got)
	}
	if err := q.AttachQueue(ctx, "Q1", "T2"); err != nil {
		t.Fatal(err)
	}
	if got := bodies(poll(t, q)); !slices.Equal(got, []string{"t2"}) {
		t.Fatalf("got %q", got)
	}
	if err := q.AttachQueue(ctx, "Q2", "T3"); !errors.Is(err, sdk.ErrAttached) {
		t.Fatalf("another queue: %v", err)
	}
	sendTo(t, p, "T2", "still")
	if d, err := q.PollWait(ctx); err != nil || string(d.Body()) != "still" {
		t.Fatal(d, err)
	}
	alone := attach(t, c, "Q3", nil)
	sendTo(t, p, "queue:Q3", "direct")
	if d, err := alone.PollWait(ctx); err != nil || string(d.Body()) != "direct" {
		t.Fatal(d, err)
	}
	if ds := poll(t, alone); ds != nil {
		t.Fatalf("got %q", bodies(ds))
	}
	other := attach(t, c, "Q4", []string{"T1", "T2"})
	if got := bodies(poll(t, other)); !slices.Equal(got, []string{"t1", "t2", "still"}) {
		t.Fatalf("got %q", got)
	}
	second := c.PullConsumer()
	if err := second.AttachQueue(ctx, "Q4"); !errors.Is(err, sdk.ErrInUse) { // AT-22
		t.Fatalf("a second consumer: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue is free", func() bool { return second.AttachQueue(ctx, "Q4") == nil })
	if ds := poll(t, second); ds != nil {
		t.Fatalf("got %q again", bodies(ds))
	}
}
