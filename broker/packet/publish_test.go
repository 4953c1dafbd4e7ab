package packet

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestPublish(t *testing.T) {
	tests := []struct {
		name string
		v    Version
		wire string
		want Publish
	}{
		{"3.1.1 QoS 0", V311, "30 07 0003 'a/b' 'hi'", Publish{Topic: []byte("a/b"), Payload: []byte("hi")}},
		{"3.1.1 retained, empty payload", V311, "31 03 0001 'a'", Publish{Retain: true, Topic: []byte("a"), Payload: []byte{}}},
		{"3.1.1 QoS 1 again", V311, "3a [ s:a 0007 00ff ]", Publish{Dup: true, QoS: 1, PacketID: 7, Topic: []byte("a"), Payload: []byte{0, 255}}},
		{"3.1 QoS 2", V31, "34 [ s:/ ffff ]", Publish{QoS: 2, PacketID: 65535, Topic: []byte("/"), Payload: []byte{}}},
		{"5 bare", V5, "30 [ s:a 00 'x' ]", Publish{Topic: []byte("a"), Payload: []byte("x")}},
		{
			"5 QoS 2 with everything", V5, "35 [ s:été/☃ 0102 [ 01 01 02 0000003c 23 0005 08 s:re 09 0003 000102 03 s:t/p 26 s:k s:v 26 s:k s: 26 s:a s:z ] 'body' ]",
			Publish{
				Retain: true, QoS: 2, PacketID: 258, Topic: []byte("été/☃"), Alias: 5, HasExpiry: true, Expiry: 60, UTF8: true, Cut: true,
				Props:   bin("01 01 02 0000003c 23 0005 08 s:re 09 0003 000102 03 s:t/p 26 s:k s:v 26 s:k s: 26 s:a s:z"),
				Payload: []byte("body"),
			},
		},
		{"5 alias alone", V5, "30 [ s: [ 23 ffff ] ]", Publish{Topic: []byte{}, Alias: 65535, Cut: true, Props: bin("23 ffff"), Payload: []byte{}}},
		{
			"5 props that are stored as they are", V5, "32 [ s:a 0001 [ 26 s:@MessageId s:1 01 00 ] ]",
			Publish{QoS: 1, PacketID: 1, Topic: []byte("a"), Props: bin("26 s:@MessageId s:1 01 00"), Payload: []byte{}},
		},
		{"5 expiry 0", V5, "30 [ s:a [ 02 00000000 ] ]", Publish{Topic: []byte("a"), HasExpiry: true, Cut: true, Props: bin("02 00000000"), Payload: []byte{}}},
		{"a topic of one multi-byte character", V311, "30 [ s:☃ ]", Publish{Topic: []byte("☃"), Payload: []byte{}}},
		{"payload need not be text", V5, "30 [ s:a [ 01 00 ] ff ]", Publish{Topic: []byte("a"), Props: bin("01 00"), Payload: []byte{255}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p Publish
			wire := bin(tt.wire)
			if err := ParsePublish(tt.v, wire, &p); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(p, tt.want) {
				t.Errorf("got\n%+v, want\n%+v", p, tt.want)
			}
			if err := Check(tt.v, wire); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPublishInvalid(t *testing.T) {
	tests := []struct {
		name string
		v    Version
		wire string
		code byte
		rule string
	}{
		{"QoS 3", V5, "36 [ s:a 0001 00 ]", CodeMalformed, "MQTT-3.3.1-4"},
		{"DUP at QoS 0", V311, "38 [ s:a ]", CodeMalformed, "MQTT-3.3.1-2"},
		{"packet id 0", V311, "32 [ s:a 0000 ]", CodeProtocol, "MQTT-2.2.1-3"},
		{"packet id missing", V311, "32 [ s:a ]", CodeMalformed, ""},
		{"empty", V311, "30 00", CodeMalformed, ""},
		{"topic cut", V311, "30 [ 0005 61 ]", CodeMalformed, ""},
		{"topic empty", V311, "30 [ s: ]", CodeProtocol, "MQTT-4.7.3-1"},
		{"topic empty without an alias", V5, "30 [ s: 00 ]", CodeProtocol, "MQTT-4.7.3-1"},
		{"wildcard +", V311, "30 [ s:a/+ ]", CodeTopicInvalid, "MQTT-3.3.2-2"},
		{"wildcard #", V5, "32 [ s:aaaaaaaaaa# 0001 00 ]", CodeTopicInvalid, "MQTT-3.3.2-2"},
		{"wildcard in the middle of a word", V5, "30 [ s:long/topic/na+me/here 00 ]", CodeTopicInvalid, ""},
		{"topic not UTF-8", V311, "30 [ 0002 61ff ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"topic with NUL", V311, "30 [ 0009 '12345678' 00 ]", CodeMalformed, "MQTT-1.5.4-2"},
		{"topic with an overlong encoding", V311, "30 [ 0002 c0af ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"no property length", V5, "30 [ s:a ]", CodeMalformed, ""},
		{"property length past the packet", V5, "30 [ s:a 05 00 ]", CodeMalformed, ""},
		{"property length overlong", V5, "30 [ s:a 8000 ]", CodeMalformed, "MQTT-1.5.5-1"},
		{"property cut by the property length", V5, "30 [ s:a 02 0200 000001 ]", CodeMalformed, ""},
		{"string property cut", V5, "30 [ s:a [ 03 0005 61 ] ]", CodeMalformed, ""},
		{"user property without a value", V5, "30 [ s:a [ 26 s:k ] ]", CodeMalformed, ""},
		{"user property name not UTF-8", V5, "30 [ s:a [ 26 0001 ff s:v ] ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"content type not UTF-8", V5, "30 [ s:a [ 03 0001 ff ] ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"alias 0", V5, "30 [ s:a [ 23 0000 ] ]", CodeAliasInvalid, "MQTT-3.3.2-8"},
		{"alias twice", V5, "30 [ s:a [ 23 0001 23 0001 ] ]", CodeProtocol, ""},
		{"expiry twice", V5, "30 [ s:a [ 02 00000001 02 00000001 ] ]", CodeProtocol, ""},
		{"payload format 2", V5, "30 [ s:a [ 01 02 ] ]", CodeProtocol, ""},
		{"subscription identifier", V5, "30 [ s:a [ 0b 01 ] ]", CodeProtocol, "MQTT-3.3.4-6"},
		{"response topic with +", V5, "30 [ s:a [ 08 s:r/+ ] ]", CodeProtocol, "MQTT-3.3.2-14"},
		{"response topic with #", V5, "30 [ s:a [ 08 s:# ] ]", CodeProtocol, "MQTT-3.3.2-14"},
		{"response topic empty", V5, "30 [ s:a [ 08 s: ] ]", CodeProtocol, "MQTT-4.7.3-1"},
		{"a property of CONNECT", V5, "30 [ s:a [ 21 0001 ] ]", CodeMalformed, ""},
		{"a Will's delay", V5, "30 [ s:a [ 18 00000001 ] ]", CodeMalformed, ""},
		{"property identifier 0", V5, "30 [ s:a [ 00 ] ]", CodeMalformed, ""},
		{"remaining length too small", V311, "30 03 s:a 'xyz'", CodeMalformed, ""},
		{"remaining length too large", V311, "30 09 s:a 'xyz'", CodeMalformed, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p Publish
			wantError(t, ParsePublish(tt.v, bin(tt.wire), &p), tt.code, tt.rule)
		})
	}
}

// TestWildcardCanBeAnswered: a wildcard costs the message, not the connection, so its packet id must be known.
// What is worse than a wildcard comes first.
func TestWildcardCanBeAnswered(t *testing.T) {
	var p Publish
	wantError(t, ParsePublish(V5, bin("34 [ s:a/# 0009 [ 26 s:k s:v ] 'x' ]"), &p), CodeTopicInvalid, "")
	if p.PacketID != 9 || p.QoS != 2 || string(p.Payload) != "x" {
		t.Errorf("%+v", p)
	}
	wantError(t, ParsePublish(V5, bin("34 [ s:a/# 0000 00 ]"), &p), CodeProtocol, "")
}

func TestCheckPayload(t *testing.T) {
	var p Publish
	for wire, code := range map[string]byte{
		"30 [ s:a [ 01 01 ] 'ok' 00 ]":   0, // NUL is a character of the payload like any other
		"30 [ s:a [ 01 01 ] ff ]":        CodePayloadFormat,
		"30 [ s:a [ 01 00 ] ff ]":        0,
		"30 [ s:a 00 ff ]":               0,
		"30 [ s:a [ 01 01 ] eda080 ]":    CodePayloadFormat,
		"30 [ s:a [ 01 01 ] e29883 21 ]": 0,
	} {
		if err := ParsePublish(V5, bin(wire), &p); err != nil {
			t.Fatal(err)
		}
		wantError(t, p.CheckPayload(), code, "")
	}
	w := Will{UTF8: true, Payload: []byte{0xFF}}
	wantError(t, w.CheckPayload(), CodePayloadFormat, "")
}

func TestStoredProps(t *testing.T) {
	var p Publish
	wire := bin("30 [ s:a [ 26 s:k s:1 23 0001 01 01 02 0000003c 26 s:k s:2 09 s:c 08 s:r 03 s:t ] ]")
	if err := ParsePublish(V5, wire, &p); err != nil {
		t.Fatal(err)
	}
	want := bin("26 s:k s:1 01 01 26 s:k s:2 09 s:c 08 s:r 03 s:t")
	if got := p.AppendStoredProps([]byte("x")); !bytes.Equal(got[1:], want) {
		t.Errorf("%x, want %x", got[1:], want)
	}
	wantError(t, CheckStored(want), 0, "")
	wantError(t, CheckStored(p.Props), CodeMalformed, "")
	wantError(t, CheckStored(bin("02 00000001")), CodeMalformed, "")
	wantError(t, CheckStored(bin("26 s:k")), CodeMalformed, "")
	if v, ok := FindUser(want, "k"); !ok || string(v) != "1" {
		t.Errorf("%q %v", v, ok)
	}
	if _, ok := FindUser(want, "none"); ok {
		t.Error("found a user property that is not there")
	}
	damaged := bin("26 s:k")
	for q := range Properties(damaged) {
		t.Errorf("walked into damage: %+v", q)
	}
	if _, ok := FindUser(damaged, "k"); ok {
		t.Error("found a user property in damage")
	}
	if q, ok := Find(want, PropContentType); !ok || string(q.Value) != "t" {
		t.Errorf("%+v %v", q, ok)
	}
	if _, ok := Find(want, PropMessageExpiry); ok {
		t.Error("found an expiry in stored form")
	}
	var again []byte
	for q := range Properties(want) {
		again = AppendProperty(again, q)
	}
	if !bytes.Equal(again, want) {
		t.Errorf("%x, want %x", again, want)
	}
}

func TestAppendPublish(t *testing.T) {
	props := bin("03 s:t")
	tests := []struct {
		name string
		v    Version
		o    Outgoing
		want string
	}{
		{"3.1.1 leaves every property out", V311, Outgoing{
			QoS: 1, PacketID: 7, Topic: "a", Alias: 3, HasExpiry: true, SubscriptionIDs: []uint32{1}, Props: props,
			Extra: []UserProperty{{"k", "v"}}, Payload: []byte("x"),
		}, "32 [ s:a 0007 'x' ]"},
		{"5 bare", V5, Outgoing{Topic: "a"}, "30 [ s:a 00 ]"},
		{"5 alias alone", V5, Outgoing{Alias: 3, Payload: []byte("x")}, "30 [ s: [ 23 0003 ] 'x' ]"},
		{
			"5 with everything", V5,
			Outgoing{
				Dup: true, Retain: true, QoS: 2, PacketID: 1, Topic: "a", Alias: 3, HasExpiry: true, Expiry: 9,
				SubscriptionIDs: []uint32{1, 300}, Props: props, Extra: []UserProperty{{"@Offset", "5"}}, Payload: []byte("x"),
			},
			"3d [ s:a 0001 [ 23 0003 02 00000009 0b 01 0b ac02 03 s:t 26 s:@Offset s:5 ] 'x' ]",
		},
		{
			"3.1.1 enveloped", V311,
			Outgoing{QoS: 1, PacketID: 7, Topic: "a", HasExpiry: true, Expiry: 9, Props: props, Extra: []UserProperty{{"k", "v"}}, Payload: []byte("x")},
			"32 [ s:a 0007 [ 02 00000009 03 s:t 26 s:k s:v ] 'x' ]",
		},
		{"3.1.1 enveloped without properties", V311, Outgoing{Topic: "a", Envelope: true, Payload: []byte("x")}, "30 [ s:a 00 'x' ]"},
		{"5 enveloped", V5, Outgoing{Topic: "a", Alias: 1, Props: props, Envelope: true, Payload: []byte("x")}, "30 [ s:a [ 23 0001 ] [ 03 s:t ] 'x' ]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.Envelope = strings.Contains(tt.name, "enveloped")
			want := bin(tt.want)
			if got := AppendPublish([]byte("pre"), tt.v, &tt.o); !bytes.Equal(got[3:], want) {
				t.Errorf("%x, want %x", got[3:], want)
			}
			if n := PublishSize(tt.v, &tt.o); n != len(want) {
				t.Errorf("PublishSize %d, want %d", n, len(want))
			}
			var p Publish
			if err := ParseDelivery(tt.v, want, &p); err != nil {
				t.Error(err)
			}
			if ids := p.SubscriptionIDs(nil); tt.v == V5 && !reflect.DeepEqual(ids, tt.o.SubscriptionIDs) {
				t.Errorf("subscription ids %v, want %v", ids, tt.o.SubscriptionIDs)
			}
		})
	}
}

// TestPublishSizes crosses every border of the remaining and property lengths.
func TestPublishSizes(t *testing.T) {
	for _, n := range []int{0, 1, 110, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 16370, 16380, 16383, 16384, 16390, 70000} {
		for _, v := range []Version{V311, V5} {
			for _, env := range []bool{false, true} {
				o := Outgoing{Topic: "t", QoS: 1, PacketID: 1, Extra: []UserProperty{{"k", strings.Repeat("v", n)}}, Payload: make([]byte, n), Envelope: env}
				b := AppendPublish(nil, v, &o)
				size, _, err := Split(b, v, 0)
				if len(b) != PublishSize(v, &o) || size != len(b) || err != nil {
					t.Errorf("n %d v%d: %d bytes, PublishSize %d, Split %d %v", n, v, len(b), PublishSize(v, &o), size, err)
				}
				var p Publish
				if err := ParsePublish(v, b, &p); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func TestEnvelope(t *testing.T) {
	block := "[ 02 0000003c 01 01 26 s:k s:v ]"
	var p Publish
	if err := ParsePublish(V311, bin("32 [ s:$v5/a 0001 "+block+" 'body' ]"), &p); err != nil {
		t.Fatal(err)
	}
	if err := ParseEnvelope(p.Payload, &p); err != nil {
		t.Fatal(err)
	}
	if !p.HasExpiry || p.Expiry != 60 || !p.UTF8 || string(p.Payload) != "body" || p.PacketID != 1 || string(p.Topic) != "$v5/a" {
		t.Errorf("%+v", p)
	}
	if got, want := p.AppendStoredProps(nil), bin("01 01 26 s:k s:v"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	o := Outgoing{HasExpiry: true, Expiry: 60, Props: bin("01 01 26 s:k s:v"), Payload: []byte("body")}
	if got, want := AppendEnvelope(nil, &o), bin(block+" 'body'"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	for _, bad := range []string{"", "05", "80", "ffffffff7f", "[ 23 0001 ]", "[ 0b 01 ]", "[ 26 s:k ]", "8000", "[ 08 s:# ]", "[ 01 01 01 01 ]"} {
		wantError(t, ParseEnvelope(bin(bad), &p), CodePayloadFormat, "")
	}
}

func TestAcks(t *testing.T) {
	tests := []struct {
		v      Version
		typ    Type
		code   byte
		reason string
		want   string
	}{
		{V311, TypePuback, 0, "", "40 02 1234"},
		{V311, TypePubrec, 0x97, "left out", "50 02 1234"},
		{V31, TypePubrel, 0, "", "62 02 1234"},
		{V311, TypePubcomp, 0, "", "70 02 1234"},
		{V5, TypePuback, 0, "", "40 02 1234"},
		{V5, TypePuback, 0x10, "", "40 03 1234 10"},
		{V5, TypePubrec, 0x97, "disk is full", "50 [ 1234 97 [ 1f s:disk 20 'is' 20 'full' ] ]"},
		{V5, TypePubrel, 0x92, "", "62 03 1234 92"},
		{V5, TypePubcomp, 0, "ok", "70 [ 1234 00 [ 1f s:ok ] ]"},
	}
	for _, tt := range tests {
		got := AppendAck([]byte("x"), tt.v, tt.typ, 0x1234, tt.code, tt.reason)[1:]
		want := bin(strings.Replace(tt.want, "s:disk", "000c 'disk'", 1))
		if !bytes.Equal(got, want) {
			t.Errorf("%v %d: %x, want %x", tt.typ, tt.v, got, want)
		}
		var a Ack
		if err := ParseAck(tt.v, got, &a); err != nil || a.Type != tt.typ || a.PacketID != 0x1234 {
			t.Errorf("%v: %+v %v", tt.typ, a, err)
		}
		if tt.v == V5 && (a.Code != tt.code || a.Reason() != tt.reason) {
			t.Errorf("%v: %+v", tt.typ, a)
		}
	}
	var a Ack
	for wire, want := range map[string]byte{"40 04 0001 00 00": 0, "40 [ 0001 99 [ 26 s:k s:v 1f s:r 26 s:k s:v ] ]": 0x99} {
		if err := ParseAck(V5, bin(wire), &a); err != nil || a.Code != want {
			t.Errorf("%s: %+v %v", wire, a, err)
		}
	}
	if a.Code == 0x99 && a.Reason() != "r" {
		t.Errorf("%+v", a)
	}
	if err := ParseAck(V31, bin("6a 02 0001"), &a); err != nil || a.Type != TypePubrel {
		t.Errorf("a PUBREL sent again in 3.1: %+v %v", a, err)
	}
	wantError(t, ParseAck(V5, bin("c0 00"), &a), CodeMalformed, "")
	wantError(t, ParseAck(V5, nil, &a), CodeMalformed, "")
}

// TestHotPathAllocates: a publish and its ack cost no garbage.
func TestHotPathAllocates(t *testing.T) {
	wire := bin("3a [ s:plant/7/line/3/temperature 0007 [ 02 0000003c 26 s:@MessageId s:8a1f 26 s:@ShardingKey s:7 ] '21.5' ]")
	ack := bin("40 [ 1234 97 [ 1f s:full ] ]")
	envelope := bin("[ 02 0000003c 26 s:k s:v ] 'body'")
	ids := []uint32{1, 2}
	extra := []UserProperty{{"@Offset", "12345"}}
	buf := make([]byte, 0, 4096)
	var p Publish
	var a Ack
	for name, fn := range map[string]func(){
		"ParsePublish": func() {
			if ParsePublish(V5, wire, &p) != nil {
				t.Fatal()
			}
		},
		"AppendStoredProps": func() { buf = p.AppendStoredProps(buf[:0]) },
		"FindUser":          func() { FindUser(p.Props, "@ShardingKey") },
		"Properties": func() {
			n := 0
			for q := range Properties(p.Props) {
				n += len(q.Value)
			}
		},
		"ParseAck": func() {
			if ParseAck(V5, ack, &a) != nil {
				t.Fatal()
			}
		},
		"AppendAck": func() { buf = AppendAck(buf[:0], V5, TypePuback, 7, 0x97, "full") },
		"AppendPublish": func() {
			o := Outgoing{QoS: 1, PacketID: 7, Topic: "plant/7/line/3/temperature", HasExpiry: true, Expiry: 5, SubscriptionIDs: ids, Props: wire[:0], Extra: extra, Payload: p.Payload}
			if buf = AppendPublish(buf[:0], V5, &o); PublishSize(V5, &o) != len(buf) {
				t.Fatal()
			}
		},
		"Split":         func() { _, _, _ = Split(wire, V5, 1<<20) },
		"Check":         func() { _ = Check(V5, wire) },
		"ParseEnvelope": func() { _ = ParseEnvelope(envelope, &p) },
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
