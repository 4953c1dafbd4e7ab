package topic

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseFilter(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	tests := []struct {
		filter string
		want   Filter
	}{
		{"a/+/#", Filter{Filter: "a/+/#"}},
		{"$SYS/broker/#", Filter{Filter: "$SYS/broker/#"}},
		{"$SYS", Filter{Filter: "$SYS"}},
		{"$aws/+/#", Filter{Filter: "$aws/+/#"}},
		{"$", Filter{Filter: "$"}},
		{"$SYSTEM", Filter{Filter: "$SYSTEM"}},
		{"$shared/g/a", Filter{Filter: "$shared/g/a"}},
		{"$v5/$aws/#", Filter{V5: true, Filter: "$aws/#"}},
		{"$share/g/$aws/#", Filter{Kind: Share, Group: "g", Filter: "$aws/#"}},
		{"$queue/jobs/$aws/#", Filter{Kind: QueueBind, Queue: "jobs", Filter: "$aws/#"}},
		{"$s/earliest/$aws/x", Filter{Kind: Replay, Start: Start{Kind: Earliest}, Filter: "$aws/x"}},
		{"$exclusive/$aws/x", Filter{Kind: Exclusive, Filter: "$aws/x"}},
		{"$v5/a/b", Filter{V5: true, Filter: "a/b"}},
		{"$v5/#", Filter{V5: true, Filter: "#"}},
		{"$v5/$SYS/#", Filter{V5: true, Filter: "$SYS/#"}},
		{"$share/g/a/#", Filter{Kind: Share, Group: "g", Filter: "a/#"}},
		{"$share/g//a", Filter{Kind: Share, Group: "g", Filter: "/a"}},
		{"$share/g/$SYS/#", Filter{Kind: Share, Group: "g", Filter: "$SYS/#"}},
		{"$v5/$share/g/#", Filter{Kind: Share, V5: true, Group: "g", Filter: "#"}},
		{"$queue/jobs", Filter{Kind: QueueAttach, Queue: "jobs"}},
		{"$queue/jobs-dead", Filter{Kind: QueueAttach, Queue: "jobs-dead"}},
		{"$queue/A.b_c-9", Filter{Kind: QueueAttach, Queue: "A.b_c-9"}},
		{"$queue/jobs/a/+/#", Filter{Kind: QueueBind, Queue: "jobs", Filter: "a/+/#"}},
		{"$queue/jobs/#", Filter{Kind: QueueBind, Queue: "jobs", Filter: "#"}},
		{"$queue/jobs//", Filter{Kind: QueueBind, Queue: "jobs", Filter: "/"}},
		{"$v5/$queue/jobs", Filter{Kind: QueueAttach, V5: true, Queue: "jobs"}},
		{"$v5/$queue/jobs/a", Filter{Kind: QueueBind, V5: true, Queue: "jobs", Filter: "a"}},
		{"$s/earliest/a/#", Filter{Kind: Replay, Start: Start{Kind: Earliest}, Filter: "a/#"}},
		{"$s/latest/a", Filter{Kind: Replay, Start: Start{Kind: Latest}, Filter: "a"}},
		{"$s/1700000000000000/a", Filter{Kind: Replay, Start: Start{Kind: AtTime, Time: 1700000000000000}, Filter: "a"}},
		{"$s/2026-03-01T12:00:00Z/a", Filter{Kind: Replay, Start: Start{Kind: AtTime, Time: at}, Filter: "a"}},
		{"$s/2026-03-01T14:00:00+02:00/a", Filter{Kind: Replay, Start: Start{Kind: AtTime, Time: at}, Filter: "a"}},
		{"$s/1h30m/a", Filter{Kind: Replay, Start: Start{Kind: Back, Back: 90 * time.Minute}, Filter: "a"}},
		{"$s/offset:42/a", Filter{Kind: Replay, Start: Start{Kind: AtOffset, Offset: 42}, Filter: "a"}},
		{"$v5/$s/offset:18446744073709551615/#", Filter{Kind: Replay, V5: true, Start: Start{Kind: AtOffset, Offset: 1<<64 - 1}, Filter: "#"}},
		{"$exclusive/a/b", Filter{Kind: Exclusive, Filter: "a/b"}},
		{"$v5/$exclusive/a", Filter{Kind: Exclusive, V5: true, Filter: "a"}},
		{strings.Repeat("/", 127), Filter{Filter: strings.Repeat("/", 127)}},
		{"$share/g/" + strings.Repeat("/", 127), Filter{Kind: Share, Group: "g", Filter: strings.Repeat("/", 127)}},
	}
	for _, tt := range tests {
		if got, err := ParseFilter(tt.filter, Limits{}); err != nil || got != tt.want {
			t.Errorf("%q: %+v %v, want %+v", tt.filter, got, err, tt.want)
		}
	}
}

func TestParseFilterInvalid(t *testing.T) {
	tests := []struct{ filter, say string }{
		{"", "empty"},
		{"a/#/b", "#"},
		{"$v5/", "empty"},
		{"$v5", "filters of the broker's own are"},
		{"$v5/$v5/a", "filters of the broker's own are"},
		{"$share/g", "after the share prefix"},
		{"$share/g/", "after the share prefix"},
		{"$share//a", "share name is empty"},
		{"$share/", "share name is empty"},
		{"$share/+/a", "wildcard"},
		{"$share/g#/a", "wildcard"},
		{"$share/g\x00/a", "U+0000"},
		{"$share/\xff/a", "UTF-8"},
		{"$share/g/a+", "+"},
		{"$share/g/$queue/jobs", "ordinary filter"},
		{"$share/g/$share/h/a", "ordinary filter"},
		{"$share/g/" + strings.Repeat("/", 128), "128 levels"},
		{"$queue/", "queue names are"},
		{"$queue//a", "queue names are"},
		{"$queue/a b", "queue names are"},
		{"$queue/+", "queue names are"},
		{"$queue/#", "queue names are"},
		{"$queue/é", "queue names are"},
		{"$queue/\xff", "queue names are"},
		{"$queue/" + strings.Repeat("q", 129), "queue names are"},
		{"$queue/jobs/", "after the queue bind prefix"},
		{"$queue/jobs/a#", "#"},
		{"$queue/jobs/$nack", "not to be subscribed to"},
		{"$queue/jobs/$caught-up", "not to be subscribed to"},
		{"$queue/jobs/$gap", "not to be subscribed to"},
		{"$queue/jobs/$queue/other", "ordinary filter"},
		{"$s/", "not a start"},
		{"$s/yesterday/a", "not a start"},
		{"$s/-5m/a", "not a start"},
		{"$s/+5m/a", "not a start"},
		{"$s/-1/a", "not a start"},
		{"$s/offset:/a", "not a start"},
		{"$s/offset:-1/a", "not a start"},
		{"$s/99999999999999999999/a", "not a start"},
		{"$s/70000d/a", "not a start"},
		{"$s/earliest", "after the replay prefix"},
		{"$s/earliest/", "after the replay prefix"},
		{"$s/earliest/$queue/jobs", "ordinary filter"},
		{"$exclusive/", "after the exclusive prefix"},
		{"$exclusive/$share/g/a", "ordinary filter"},
		{"$delayed/5/a", "$delayed/ is for publishing"},
		{"$share", "filters of the broker's own are"},
		{"$queue", "filters of the broker's own are"},
		{"$s", "filters of the broker's own are"},
		{"$delayed", "filters of the broker's own are"},
		{"$exclusive", "filters of the broker's own are"},
		{"$edgemq/x", "filters of the broker's own are"},
		{"$aws/#/x", "#"},
		{"$a+/x", "+"},
	}
	for _, tt := range tests {
		f, err := ParseFilter(tt.filter, Limits{})
		wantCode(t, err, CodeFilterInvalid, tt.say)
		if f != (Filter{}) {
			t.Errorf("%q: %+v beside an error", tt.filter, f)
		}
	}
}

func TestParseName(t *testing.T) {
	tests := []struct {
		name string
		want Name
	}{
		{"a/b", Name{Topic: []byte("a/b")}},
		{"a/$queue/x", Name{Topic: []byte("a/$queue/x")}},
		{"$", Name{Topic: []byte("$")}},
		{"$/x", Name{Topic: []byte("$/x")}},
		{"$aws/things/x", Name{Topic: []byte("$aws/things/x")}},
		{"$SYSTEM/x", Name{Topic: []byte("$SYSTEM/x")}},
		{"$shared/x", Name{Topic: []byte("$shared/x")}},
		{"$v5/$aws/x", Name{V5: true, Topic: []byte("$aws/x")}},
		{"$delayed/5/$aws/x", Name{Kind: Delayed, Delay: 5, Topic: []byte("$aws/x")}},
		{"$v5/a/b", Name{V5: true, Topic: []byte("a/b")}},
		{"$v5//", Name{V5: true, Topic: []byte("/")}},
		{"$queue/jobs", Name{Kind: Queue, Topic: []byte("$queue/jobs"), Queue: []byte("jobs")}},
		{"$v5/$queue/jobs", Name{Kind: Queue, V5: true, Topic: []byte("$queue/jobs"), Queue: []byte("jobs")}},
		{"$queue/jobs/$nack", Name{Kind: QueueNack, Topic: []byte("$queue/jobs"), Queue: []byte("jobs")}},
		{"$v5/$queue/jobs/$nack", Name{Kind: QueueNack, V5: true, Topic: []byte("$queue/jobs"), Queue: []byte("jobs")}},
		{"$delayed/60/a/b", Name{Kind: Delayed, Delay: 60, Topic: []byte("a/b")}},
		{"$delayed/0/a", Name{Kind: Delayed, Topic: []byte("a")}},
		{"$delayed/4294967295//", Name{Kind: Delayed, Delay: 4294967295, Topic: []byte("/")}},
		{"$delayed/7/$queue/jobs", Name{Kind: Delayed, Delay: 7, Topic: []byte("$queue/jobs"), Queue: []byte("jobs")}},
		{"$v5/$delayed/7/$queue/jobs", Name{Kind: Delayed, V5: true, Delay: 7, Topic: []byte("$queue/jobs"), Queue: []byte("jobs")}},
	}
	for _, tt := range tests {
		if got, err := ParseName([]byte(tt.name), Limits{}); err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: %+v %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

func TestParseNameInvalid(t *testing.T) {
	tests := []struct{ name, say string }{
		{"", "empty"},
		{"a/+", "wildcard"},
		{"a\x00", "U+0000"},
		{"$SYS/broker/uptime", "names of the broker's own are"},
		{"$share/g/a", "names of the broker's own are"},
		{"$s/earliest/a", "names of the broker's own are"},
		{"$exclusive/a", "names of the broker's own are"},
		{"$SYS", "names of the broker's own are"},
		{"$share", "names of the broker's own are"},
		{"$s", "names of the broker's own are"},
		{"$delayed", "names of the broker's own are"},
		{"$exclusive", "names of the broker's own are"},
		{"$edgemq", "names of the broker's own are"},
		{"$edgemq/x", "names of the broker's own are"},
		{"$delayed/5/$SYS/x", "names of the broker's own are"},
		{"$v5", "names of the broker's own are"},
		{"$v5/$v5/a", "names of the broker's own are"},
		{"$v5/$SYS/a", "names of the broker's own are"},
		{"$v5/", "no topic"},
		{"$queue", "names of the broker's own are"},
		{"$queue/", "queue names are"},
		{"$queue/a b", "queue names are"},
		{"$queue/jobs/x", "queue names are"},
		{"$queue/jobs/$caught-up", "queue names are"},
		{"$queue/$nack", "queue names are"},
		{"$queue//$nack", "queue names are"},
		{"$queue/jobs/", "queue names are"},
		{"$queue/" + strings.Repeat("é", 129), "queue names are"},
		{"$delayed/60", "$delayed/<seconds>/<topic>"},
		{"$delayed//a", "$delayed/<seconds>/<topic>"},
		{"$delayed/x/a", "$delayed/<seconds>/<topic>"},
		{"$delayed/-1/a", "$delayed/<seconds>/<topic>"},
		{"$delayed/1.5/a", "$delayed/<seconds>/<topic>"},
		{"$delayed/4294967296/a", "4294967295"},
		{"$delayed/42949672950/a", "4294967295"},
		{"$delayed/60/", "no topic"},
		{"$delayed/60/$delayed/60/a", "names of the broker's own are"},
		{"$delayed/60/$v5/a", "names of the broker's own are"},
		{"$delayed/60/$SYS/a", "names of the broker's own are"},
		{"$delayed/60/$queue/jobs/$nack", "cannot be delayed"},
	}
	for _, tt := range tests {
		n, err := ParseName([]byte(tt.name), Limits{})
		wantCode(t, err, CodeNameInvalid, tt.say)
		if !reflect.DeepEqual(n, Name{}) {
			t.Errorf("%q: %+v beside an error", tt.name, n)
		}
	}
	_, err := ParseName([]byte("a/b/c"), Limits{MaxLevels: 2})
	wantCode(t, err, CodeNameInvalid, "2 levels")
}

func TestParseStart(t *testing.T) {
	tests := []struct {
		s    string
		want Start
	}{
		{"0", Start{Kind: AtTime}},
		{"9223372036854775807", Start{Kind: AtTime, Time: 1<<63 - 1}},
		{"1970-01-01T00:00:01.5Z", Start{Kind: AtTime, Time: 1500000}},
		{"0s", Start{Kind: Back}},
		{"1.5h", Start{Kind: Back, Back: 90 * time.Minute}},
		{"7d", Start{Kind: Back, Back: 7 * 24 * time.Hour}},
		{"1d12h", Start{Kind: Back, Back: 36 * time.Hour}},
		{"offset:0", Start{Kind: AtOffset}},
	}
	for _, tt := range tests {
		if got, err := ParseStart(tt.s); err != nil || got != tt.want {
			t.Errorf("%q: %+v %v, want %+v", tt.s, got, err, tt.want)
		}
	}
	for _, s := range []string{"", "d", "1dd", "-1d", "1d-2h", "5", "Earliest", "1h30", "2026-03-01", "offset:x", "offset", "1_000"} {
		_, err := ParseStart(s)
		if s == "5" {
			wantCode(t, err, 0, "") // 5 µs after 1970
			continue
		}
		wantCode(t, err, CodeFilterInvalid, "not a start")
	}
}

func TestQueueOf(t *testing.T) {
	for topic, want := range map[string]string{"$queue/jobs": "jobs", "$queue/": "", "$queue/a/b": "", "queue/jobs": "", "$queue/a-dead": "a-dead"} {
		if got, ok := QueueOf(topic); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v", topic, got, ok)
		}
	}
	if !ValidQueue(strings.Repeat("q", 128)) || !ValidQueue([]byte("a")) {
		t.Error("valid queue names are refused")
	}
}

func TestKindString(t *testing.T) {
	if Plain.String() != "plain" || Delayed.String() != "delayed" {
		t.Error(Plain, Delayed)
	}
}

// FuzzParse: what is accepted holds together: the parts are valid by themselves, names of the broker's own are never
// stored but queues, and nothing reaches a queue that is not one by name.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a/b", "$v5/$delayed/7/$queue/jobs", "$queue/jobs/$nack", "$share/g/a/#", "$s/1h/a", "$queue/q/+/#", "$v5/$exclusive/a", "$s/2026-03-01T12:00:00Z/a", "$", "$foreign/a", "$share/g/$foreign/#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseName([]byte(s), Limits{}); err == nil {
			if ValidName(n.Topic, Limits{}) != nil || !strings.Contains(s, string(n.Topic)) {
				t.Fatalf("name %q: %+v", s, n)
			}
			queue, isQueue := QueueOf(string(n.Topic))
			if Own(n.Topic) != isQueue || isQueue && queue != string(n.Queue) || isQueue != (n.Queue != nil) {
				t.Fatalf("name %q: %+v", s, n)
			}
			if (n.Kind == Plain) != (s == string(n.Topic) || n.V5 && n.Queue == nil && n.Kind != Delayed) && !isQueue {
				t.Fatalf("name %q: %+v", s, n)
			}
		}
		fl, err := ParseFilter(s, Limits{})
		if err != nil {
			return
		}
		if fl.Kind != QueueAttach && ValidFilter(fl.Filter, Limits{}) != nil {
			t.Fatalf("filter %q: %+v", s, fl)
		}
		if Own(fl.Filter) && !System(fl.Filter) {
			t.Fatalf("filter %q is special within: %+v", s, fl)
		}
		if isQueue := fl.Kind == QueueAttach || fl.Kind == QueueBind; isQueue != ValidQueue(fl.Queue) {
			t.Fatalf("filter %q: %+v", s, fl)
		}
	})
}
