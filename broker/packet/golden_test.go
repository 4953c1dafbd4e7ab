package packet

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
)

// golden is a packet in both forms. Decoding the bytes gives the struct, encoding the struct the bytes.
type golden struct {
	name string
	v    Version
	wire string
	want any
}

var user = []UserProperty{{"k", "v"}, {"k", ""}, {"a", "z"}} // names repeat, order counts

var goldens = []golden{
	{
		"CONNECT 3.1", V31, "10 12 0006 'MQIsdp' 03 02 003c 0004 'dev1'",
		&Connect{Version: V31, Clean: true, KeepAlive: 60, ClientID: "dev1", ReceiveMaximum: 65535},
	},
	{
		"CONNECT 3.1.1, nothing but a clean session", V311, "10 0c 0004 'MQTT' 04 02 0000 0000",
		&Connect{Version: V311, Clean: true, ReceiveMaximum: 65535},
	},
	{
		"CONNECT 3.1.1 with everything", V311, "10 [ s:MQTT 04 f4 ffff s:dev1 s:will/t 0002 00ff s:me 0003 'p' 00 'w' ]",
		&Connect{
			Version: V311, KeepAlive: 65535, ClientID: "dev1", HasUsername: true, Username: "me", HasPassword: true,
			Password: []byte("p\x00w"), Will: &Will{Topic: "will/t", Payload: []byte{0, 255}, QoS: 2, Retain: true}, ReceiveMaximum: 65535,
		},
	},
	{
		"CONNECT 3.1.1 with an empty Will and an empty user name", V311, "10 [ s:MQTT 04 86 0000 s: s:w s: s: ]",
		&Connect{Version: V311, Clean: true, HasUsername: true, Will: &Will{Topic: "w", Payload: []byte{}}, ReceiveMaximum: 65535},
	},
	{
		"CONNECT 5 bare", V5, "10 0d 0004 'MQTT' 05 02 0000 00 0000",
		&Connect{Version: V5, Clean: true, ReceiveMaximum: 65535},
	},
	{
		"CONNECT 5 keeping the session without an id, which the server assigns", V5, "10 [ s:MQTT 05 00 0000 [ 11 ffffffff ] s: ]",
		&Connect{Version: V5, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF, ReceiveMaximum: 65535},
	},
	{
		"CONNECT 5 password without a user name, allowed there", V5, "10 [ s:MQTT 05 42 0000 00 s: s:tok ]",
		&Connect{Version: V5, Clean: true, HasPassword: true, Password: []byte("tok"), ReceiveMaximum: 65535},
	},
	{
		"CONNECT 5 with everything", V5, "10 [ s:MQTT 05 ee 000a" +
			" [ 11 00000e10 21 0014 27 00100000 22 0005 19 01 17 00 15 s:SCRAM 16 s:data 26 s:k s:v 26 s:k s: 26 s:a s:z ]" +
			" s:dev1 [ 18 0000001e 02 00000078 01 01 03 s:json 08 s:re/ply 09 0002 beef 26 s:k s:v ] s:w/t s:bye s:me s:pw ]",
		&Connect{
			Version: V5, Clean: true, KeepAlive: 10, ClientID: "dev1", HasUsername: true, Username: "me", HasPassword: true, Password: []byte("pw"),
			HasSessionExpiry: true, SessionExpiry: 3600, ReceiveMaximum: 20, MaximumPacketSize: 1 << 20, TopicAliasMaximum: 5,
			RequestResponseInfo: true, NoProblemInfo: true, AuthMethod: "SCRAM", AuthData: []byte("data"), User: user,
			Will: &Will{
				Topic: "w/t", Payload: []byte("bye"), QoS: 1, Retain: true, Delay: 30, HasExpiry: true, Expiry: 120, UTF8: true,
				Props: bin("01 01 03 s:json 08 s:re/ply 09 0002 beef 26 s:k s:v"),
			},
		},
	},

	{"CONNACK 3.1 has no session present", V31, "20 02 00 00", &Connack{}},
	{"CONNACK 3.1.1", V311, "20 02 01 00", &Connack{SessionPresent: true}},
	{"CONNACK 3.1.1 identifier rejected", V311, "20 02 00 02", &Connack{Code: 2}},
	{"CONNACK 5 bare", V5, "20 03 00 00 00", &Connack{}},
	{"CONNACK 5 refusal with a reason", V5, "20 [ 00 87 [ 1f s:no ] ]", &Connack{Code: CodeNotAuthorized, ReasonString: "no"}},
	{
		"CONNACK 5 with everything", V5, "20 [ 01 00 [ 11 00000000 21 0400 24 01 25 00 27 00100000 12 s:id 22 000a 1f s:hi 26 s:k s:v 26 s:k s: 26 s:a s:z" +
			" 28 00 29 00 2a 00 13 0000 1a s:ri 1c s:ref 15 s:m 16 s: ] ]",
		&Connack{
			SessionPresent: true, HasSessionExpiry: true, ReceiveMaximum: 1024, HasMaximumQoS: true, MaximumQoS: 1, NoRetain: true,
			MaximumPacketSize: 1 << 20, AssignedClientID: "id", TopicAliasMaximum: 10, ReasonString: "hi", User: user, NoWildcards: true,
			NoSubscriptionIDs: true, NoShared: true, HasServerKeepAlive: true, ResponseInfo: "ri", ServerReference: "ref", AuthMethod: "m", AuthData: []byte{},
		},
	},

	{
		"SUBSCRIBE 3.1.1", V311, "82 [ 0001 s:a/b 01 s:# 02 s:+/x 00 ]",
		&Subscribe{PacketID: 1, Filters: []Subscription{{Filter: "a/b", QoS: 1}, {Filter: "#", QoS: 2}, {Filter: "+/x"}}},
	},
	{"SUBSCRIBE 5", V5, "82 [ ffff 00 s:a 00 ]", &Subscribe{PacketID: 65535, Filters: []Subscription{{Filter: "a"}}}},
	{
		"SUBSCRIBE 5 with everything", V5, "82 [ 0102 [ 0b ffffff7f 26 s:k s:v 26 s:k s: 26 s:a s:z ] s:a 2e s:$share/g/x 19 s:é 05 ]",
		&Subscribe{PacketID: 258, SubscriptionID: MaxRemaining, User: user, Filters: []Subscription{
			{Filter: "a", QoS: 2, NoLocal: true, RetainAsPublished: true, RetainHandling: 2}, {Filter: "$share/g/x", QoS: 1, RetainAsPublished: true, RetainHandling: 1}, {Filter: "é", QoS: 1, NoLocal: true},
		}},
	},
	{"SUBSCRIBE with a misplaced wildcard is well-formed: the answer is a SUBACK", V5, "82 [ 0001 00 s:a/#/b 00 ]", &Subscribe{PacketID: 1, Filters: []Subscription{{Filter: "a/#/b"}}}},

	{"UNSUBSCRIBE 3.1.1", V311, "a2 [ 0001 s:a s:b/# ]", &Unsubscribe{PacketID: 1, Filters: []string{"a", "b/#"}}},
	{"UNSUBSCRIBE 5", V5, "a2 [ 0001 [ 26 s:k s:v 26 s:k s: 26 s:a s:z ] s:a ]", &Unsubscribe{PacketID: 1, User: user, Filters: []string{"a"}}},

	{"DISCONNECT 3.1.1", V311, "e0 00", &Disconnect{}},
	{"DISCONNECT 5 normal", V5, "e0 00", &Disconnect{}},
	{"DISCONNECT 5 with Will", V5, "e0 01 04", &Disconnect{Code: 4}},
	{
		"DISCONNECT 5 with everything", V5, "e0 [ 00 [ 11 00000000 1f s:bye 1c s:other 26 s:k s:v 26 s:k s: 26 s:a s:z ] ]",
		&Disconnect{HasSessionExpiry: true, ReasonString: "bye", ServerReference: "other", User: user},
	},

	{
		"AUTH 5", V5, "f0 [ 18 [ 15 s:M 16 0001 00 1f s:why 26 s:k s:v 26 s:k s: 26 s:a s:z ] ]",
		&Auth{Code: 0x18, Method: "M", Data: []byte{0}, ReasonString: "why", User: user},
	},
	{"AUTH 5 re-authenticate", V5, "f0 [ 19 [ 15 s:M ] ]", &Auth{Code: 0x19, Method: "M"}},

	{"SUBACK 3.1.1", V311, "90 05 0001 01 02 80", &Suback{PacketID: 1, Codes: []byte{1, 2, 0x80}}},
	{"SUBACK 5", V5, "90 [ 0001 [ 1f s:r 26 s:k s:v 26 s:k s: 26 s:a s:z ] 00 8f ]", &Suback{PacketID: 1, Codes: []byte{0, 0x8F}, ReasonString: "r", User: user}},
}

func decode(v Version, frame []byte) (any, error) {
	switch TypeOf(frame) {
	case TypeConnect:
		return ParseConnect(frame)
	case TypeConnack:
		return ParseConnack(v, frame)
	case TypeSubscribe:
		return ParseSubscribe(v, frame)
	case TypeUnsubscribe:
		return ParseUnsubscribe(v, frame)
	case TypeSuback:
		return ParseSuback(v, frame)
	case TypeUnsuback:
		return ParseUnsuback(v, frame)
	case TypeDisconnect:
		return ParseDisconnect(v, frame)
	case TypeAuth:
		return ParseAuth(frame)
	case TypePublish:
		p := &Publish{}
		return p, ParsePublish(v, frame, p)
	}
	a := &Ack{}
	return a, ParseAck(v, frame, a)
}

func encode(dst []byte, v Version, t Type, p any) []byte {
	switch p := p.(type) {
	case *Connect:
		return AppendConnect(dst, p)
	case *Connack:
		return AppendConnack(dst, v, p)
	case *Subscribe:
		return AppendSubscribe(dst, v, p)
	case *Unsubscribe:
		return AppendUnsubscribe(dst, v, p)
	case *Suback:
		if t == TypeUnsuback {
			return AppendUnsuback(dst, v, p)
		}
		return AppendSuback(dst, v, p)
	case *Disconnect:
		return AppendDisconnect(dst, v, p)
	case *Auth:
		return AppendAuth(dst, p)
	case *Ack:
		return AppendAck(dst, v, p.Type, p.PacketID, p.Code, p.Reason())
	case *Publish:
		return AppendPublish(dst, v, outgoing(p))
	}
	panic(fmt.Sprintf("%T", p))
}

// outgoing is the PUBLISH that says the same as p.
func outgoing(p *Publish) *Outgoing {
	return &Outgoing{
		Dup: p.Dup, Retain: p.Retain, QoS: p.QoS, PacketID: p.PacketID, Topic: string(p.Topic), Alias: p.Alias,
		HasExpiry: p.HasExpiry, Expiry: p.Expiry, SubscriptionIDs: p.SubscriptionIDs(nil), Props: p.AppendStoredProps(nil), Payload: p.Payload,
	}
}

func fromServer(t Type) bool { return t == TypeConnack || t == TypeSuback || t == TypeUnsuback }

func TestGolden(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			wire := bin(g.wire)
			got, err := decode(g.v, wire)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, g.want) {
				t.Errorf("decoded\n%+v, want\n%+v", got, g.want)
			}
			if b := encode([]byte("x"), g.v, TypeOf(wire), g.want); !bytes.Equal(b[1:], wire) {
				t.Errorf("encoded\n%x, want\n%x", b[1:], wire)
			}
			if size, _, err := Split(wire, g.v, 0); size != len(wire) || err != nil {
				t.Errorf("Split says %d %v, want %d", size, err, len(wire))
			}
			err = Check(g.v, wire)
			if fromServer(TypeOf(wire)) {
				wantError(t, err, CodeProtocol, "")
			} else {
				wantError(t, err, 0, "")
			}
		})
	}
}

// TestGoldenDamaged: whatever is cut off a packet or put behind it, nothing panics, and no bytes go unnoticed.
func TestGoldenDamaged(t *testing.T) {
	for _, g := range goldens {
		wire := bin(g.wire)
		if _, err := decode(g.v, append(wire[:len(wire):len(wire)], 0)); err == nil {
			t.Errorf("%s: accepted with a byte more than its remaining length", g.name)
		}
		typ := TypeOf(wire)
		b, _ := body(g.v, wire, typ)
		if typ != TypeSuback { // whose last field is open-ended
			longer := appendFrame(nil, typ, wire[0]&15, append(bytes.Clone(b), 1))
			if _, err := decode(g.v, longer); err == nil && len(b) > 0 {
				t.Errorf("%s: accepted with a byte after the last field", g.name)
			}
		}
		for n := range b {
			_, _ = decode(g.v, wire[:n+1])
			cut := appendFrame(nil, typ, wire[0]&15, b[:n])
			_, _ = decode(g.v, cut)
			if _, err := decode(g.v, cut); err == nil && (typ == TypeConnect || typ == TypeConnack) {
				t.Errorf("%s: accepted when cut to %d bytes", g.name, n)
			}
		}
	}
}

// TestWithoutWill: what mochi gets says nothing of a Will and everything else as before.
func TestWithoutWill(t *testing.T) {
	for _, g := range goldens {
		c, ok := g.want.(*Connect)
		if !ok {
			continue
		}
		want := *c
		want.Will = nil
		got, err := ParseConnect(c.AppendWithoutWill(nil))
		if err != nil || !reflect.DeepEqual(got, &want) {
			t.Errorf("%s: %+v %v, want %+v", g.name, got, err, &want)
		}
		if c.Will != nil && c.Version == V311 && got.HasUsername != c.HasUsername {
			t.Errorf("%s: user name lost", g.name)
		}
	}
	c, _ := ParseConnect(bin("10 [ s:MQTT 04 3e 000a s:id s:w/t s:bye ]"))
	if c == nil || c.Version != V311 {
		t.Fatal("flags 3e are a Will of QoS 3 and must name the version all the same")
	}
	c, err := ParseConnect(bin("10 [ s:MQTT 04 ee 000a s:id s:w/t s:bye s:u s:p ]"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.AppendWithoutWill(nil), bin("10 [ s:MQTT 04 c2 000a s:id s:u s:p ]"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// TestOwnMemory: the structs outlive the read buffer.
func TestOwnMemory(t *testing.T) {
	for _, g := range goldens {
		wire := bin(g.wire)
		got, _ := decode(g.v, wire)
		for i := range wire {
			wire[i] = 0xAA
		}
		if !reflect.DeepEqual(got, g.want) {
			t.Errorf("%s: changed with the buffer it was parsed from", g.name)
		}
	}
}

func TestSubackBefore5(t *testing.T) {
	s := &Suback{PacketID: 9, Codes: []byte{1, 0x8F, 0x97}, ReasonString: "not told"}
	if got, want := AppendSuback(nil, V311, s), bin("90 05 0009 01 80 80"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if got, want := AppendUnsuback(nil, V311, s), bin("b0 02 0009"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	un := &Suback{PacketID: 9, Codes: []byte{0, 0x11}}
	wire := bin("b0 05 0009 00 00 11")
	if got := AppendUnsuback(nil, V5, un); !bytes.Equal(got, wire) {
		t.Errorf("%x, want %x", got, wire)
	}
	if got, err := ParseUnsuback(V5, wire); err != nil || !reflect.DeepEqual(got, un) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := ParseUnsuback(V311, bin("b0 02 0009")); err != nil || got.PacketID != 9 {
		t.Errorf("%+v %v", got, err)
	}
}

func TestPings(t *testing.T) {
	if b := AppendPingresp(AppendPingreq(nil)); !bytes.Equal(b, bin("c000 d000")) {
		t.Errorf("%x", b)
	}
}

func TestAuthSuccess(t *testing.T) {
	if b := AppendAuth(nil, &Auth{}); !bytes.Equal(b, bin("f000")) {
		t.Errorf("%x", b)
	}
}

func TestServerDisconnect(t *testing.T) {
	wire := AppendDisconnect(nil, V5, &Disconnect{Code: CodeTakenOver, ReasonString: "again"})
	if want := bin("e0 [ 8e [ 1f s:again ] ]"); !bytes.Equal(wire, want) {
		t.Errorf("%x, want %x", wire, want)
	}
	if d, err := ParseServerDisconnect(wire); err != nil || d.Code != CodeTakenOver || d.ReasonString != "again" {
		t.Errorf("%+v %v", d, err)
	}
	_, err := ParseServerDisconnect(bin("e0 [ 8e [ 11 00000001 ] ]"))
	wantError(t, err, CodeProtocol, "MQTT-3.14.2-2")
}

// TestUnusedIn31: what 3.1.1 reserves, 3.1 does not use.
func TestUnusedIn31(t *testing.T) {
	for _, wire := range []string{"14 [ s:MQIsdp 03 02 003c s:dev1 ]", "1d [ s:MQIsdp 03 02 003c s:dev1 ]", "10 [ s:MQIsdp 03 03 003c s:dev1 ]"} {
		c, err := ParseConnect(bin(wire))
		if err != nil || c.Version != V31 || !c.Clean || c.ClientID != "dev1" {
			t.Errorf("%s: %+v %v", wire, c, err)
		}
	}
	for _, wire := range []string{"14 [ s:MQTT 04 02 003c s:dev1 ]", "12 [ s:MQTT 05 02 003c 00 s:dev1 ]", "10 [ s:MQTT 04 03 003c s:dev1 ]"} {
		if _, err := ParseConnect(bin(wire)); err == nil {
			t.Errorf("%s: accepted", wire)
		}
	}
}
