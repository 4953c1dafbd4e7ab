package sdk

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// through sends a message through the envelope, as a queue would deliver it.
func through(t testing.TB, m *Message, s stamp) *Message {
	t.Helper()
	var e encoder
	props, err := e.encode(m, &s)
	if err != nil {
		t.Fatal(err)
	}
	return reopen(t, m, props)
}

func reopen(t testing.TB, m *Message, props []byte) *Message {
	t.Helper()
	name := m.Topic()
	if q := m.Queue(); q != "" {
		name = "$queue/" + q
	}
	d := delivery{topic: name, payload: packet.AppendEnvelope(nil, &packet.Outgoing{Props: props, Payload: m.Body()})}
	got, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	return &got.Message
}

var values = []Value{ // AT-05
	Int32(0), Int32(1), Int32(-1), Int32(math.MaxInt32), Int32(math.MinInt32),
	Int64(0), Int64(1), Int64(-1), Int64(math.MaxInt64), Int64(math.MinInt64),
	Float64(0), Float64(math.Copysign(0, -1)), Float64(1), Float64(0.1), Float64(1e-320), Float64(5e-324),
	Float64(math.MaxFloat64), Float64(math.Inf(1)), Float64(math.Inf(-1)), Float64(math.NaN()),
	Float64(math.Float64frombits(0x7FF8000000000000)), Float64(math.Float64frombits(0xFFF0000000000001)),
	String(""), String("1"), String("NaN"), String("grüße, 世界 🌊"), String(strings.Repeat("ä", 30000)),
}

func TestValuesSurvive(t *testing.T) {
	m := NewMessage("a/b", []byte("body"))
	for i, v := range values {
		name := "n" + strings.Repeat("x", i)
		m.PutProperty(name, v).PutHeader("H"+name, v)
	}
	got := through(t, m, stamp{})
	if !slices.Equal(got.Properties(), m.Properties()) {
		t.Fatalf("properties\n got %v\nwant %v", got.Properties(), m.Properties())
	}
	if !slices.Equal(got.Headers(), m.Headers()) {
		t.Fatalf("headers\n got %v\nwant %v", got.Headers(), m.Headers())
	}
}

func TestGettersDoNotConvert(t *testing.T) {
	one, long := Int32(1), Int64(1)
	if one == long {
		t.Fatal("an int32 1 is an int64 1")
	}
	if v, err := one.Int32(); v != 1 || err != nil {
		t.Fatal(v, err)
	}
	if _, err := one.Int64(); !errors.Is(err, ErrType) {
		t.Fatalf("an int32 as an int64: %v", err)
	}
	if _, err := String("1").Int32(); !errors.Is(err, ErrType) {
		t.Fatalf("a string as an int32: %v", err)
	}
	if _, err := long.Text(); !errors.Is(err, ErrType) {
		t.Fatalf("an int64 as a string: %v", err)
	}
	if _, err := Float64(1).Text(); !errors.Is(err, ErrType) {
		t.Fatalf("a float64 as a string: %v", err)
	}
	m := NewMessage("a", nil)
	if f, err := m.Property("none").Float64(); f != 0 || err != nil {
		t.Fatal(f, err)
	}
	if s, err := m.Header("none").Text(); s != "" || err != nil {
		t.Fatal(s, err)
	}
}

func TestPutReplaces(t *testing.T) { // AT-08
	m := NewMessage("a", nil).PutProperty("k", String("1")).PutProperty("other", Int32(5)).PutProperty("k", Int64(2))
	got := through(t, m, stamp{})
	want := Values{{"k", Int64(2)}, {"other", Int32(5)}}
	if !slices.Equal(got.Properties(), want) {
		t.Fatalf("got %v", got.Properties())
	}
}

func TestNoPropertiesAreNil(t *testing.T) { // AT-06
	m := NewQueueMessage("q", nil)
	if m.Properties() != nil {
		t.Fatal("a new message has properties")
	}
	got := through(t, m, stamp{id: "1"})
	if got.Properties() != nil || got.Queue() != "q" || got.Topic() != "" || got.Body() == nil || len(got.Body()) != 0 {
		t.Fatalf("got %+v", got)
	}
}

func TestStampsDoNotOverwrite(t *testing.T) { // AT-07
	s := stamp{id: "made", born: 7, host: "here", producer: "me", trace: "t"}
	got := through(t, NewMessage("a", nil), s)
	if got.MessageID() != "made" || got.BornTime().UnixMilli() != 7 || got.Producer() != "me" ||
		got.Header(HeaderBornHost) != String("here") || got.Header(HeaderTraceID) != String("t") {
		t.Fatalf("got %v", got.Headers())
	}
	m := NewMessage("a", nil).PutHeader(HeaderMessageID, String("own")).PutHeader(HeaderBornTimestamp, String("long ago")).
		PutHeader(HeaderBornHost, String("there")).PutHeader(HeaderProducer, String("you")).PutHeader(HeaderTraceID, String("x"))
	if got := through(t, m, s); !slices.Equal(got.Headers(), m.Headers()) {
		t.Fatalf("got %v, want %v", got.Headers(), m.Headers())
	}
}

func TestOddNames(t *testing.T) {
	m := NewMessage("a", nil).PutProperty("a,b", Int32(1)).PutProperty("c:d", Int64(2)).PutProperty("100%2C", Float64(3)).
		PutProperty("%", Int32(4)).PutHeader("x:y,z", Int32(5))
	got := through(t, m, stamp{})
	if !slices.Equal(got.Properties(), m.Properties()) || !slices.Equal(got.Headers(), m.Headers()) {
		t.Fatalf("got %v %v", got.Headers(), got.Properties())
	}
	for _, bad := range []*Message{
		NewMessage("a", nil).PutProperty("@x", String("")), NewMessage("a", nil).PutProperty("", String("")),
		NewMessage("a", nil).PutHeader("types", String("")), NewMessage("a", nil).PutProperty("x", Value{}),
		NewMessage("a", nil).PutProperty("x", String("\xff")), NewMessage("a", nil).PutProperty("x\x00", String("")),
		NewMessage("a", nil).PutProperty("x", String(strings.Repeat("x", 65536))),
	} {
		var e encoder
		if _, err := e.encode(bad, &stamp{}); !errors.Is(err, ErrName) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestForeignProperties(t *testing.T) { // AT-45: as an MQTT 5 client may send them
	b := packet.AppendUser(nil, "same", "1")
	b = packet.AppendProperty(b, packet.Property{ID: packet.PropContentType, Value: []byte("text/plain")})
	b = packet.AppendUser(b, wire.Types, "same:i,broken:i,@Retry:l,:,x,missing:d")
	b = packet.AppendUser(b, "same", "2")
	b = packet.AppendProperty(b, packet.Property{ID: packet.PropPayloadFormat, Num: 1})
	b = packet.AppendUser(b, "broken", "one")
	b = packet.AppendProperty(b, packet.Property{ID: packet.PropCorrelationData, Value: []byte{0, 1}})
	b = packet.AppendUser(b, "@Retry", "9")
	b = packet.AppendUser(b, "@Topic", "not this one")
	got := reopen(t, NewMessage("a/b", []byte{1}), b)
	if want := (Values{{"same", Int32(1)}, {"same", Int32(2)}, {"broken", String("one")}}); !slices.Equal(got.Properties(), want) {
		t.Fatalf("got %v", got.Properties())
	}
	if want := (Values{{HeaderTopic, String("a/b")}, {"Retry", Int64(9)}}); !slices.Equal(got.Headers(), want) {
		t.Fatalf("got %v", got.Headers())
	}
	if got.ContentType != "text/plain" || string(got.CorrelationData) != "\x00\x01" {
		t.Fatalf("got %+v", got)
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add("name", "text", int64(5), 1.5, []byte("body"))
	f.Add("a,b:c%", "\x00", int64(-1), math.NaN(), []byte{})
	f.Fuzz(func(t *testing.T, name, text string, n int64, x float64, body []byte) {
		m := NewMessage("t", append([]byte{}, body...)).PutProperty(name, String(text)).PutProperty(name+"1", Int64(n)).
			PutProperty(name+"2", Float64(x)).PutProperty(name+"3", Int32(int32(n))).PutHeader("H"+name, Float64(x))
		var e encoder
		props, err := e.encode(m, &stamp{})
		if err != nil {
			return
		}
		if err := packet.CheckStored(props); err != nil {
			t.Fatalf("the broker would refuse it: %v", err)
		}
		got := reopen(t, m, props)
		if !slices.Equal(got.Properties(), m.Properties()) || !slices.Equal(got.Headers(), m.Headers()) || string(got.Body()) != string(body) {
			t.Fatalf("got %v %v %q", got.Headers(), got.Properties(), got.Body())
		}
	})
}

// A payload that no SDK made is shown or refused, and never a panic.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{0})
	f.Add(packet.AppendEnvelope(nil, &packet.Outgoing{Props: packet.AppendUser(nil, wire.Types, "a:i"), Payload: []byte("x")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := delivery{topic: "t", payload: b}
		_, _ = d.open()
	})
}
