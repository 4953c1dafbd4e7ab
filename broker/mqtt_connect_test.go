package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// What a CONNECT that is not accepted is answered, in the codes of its own version. [MQTT-3.1.4-2] [MQTT-3.1.2-2] [MQTT-3.2.2-4]
func TestConnectRefused(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	const none = ""
	for _, tt := range []struct{ name, send, want string }{
		{"3.1.1: level 6 of MQTT", "10 0d 00 04 4d 51 54 54 06 02 00 00 00 00 01 61", "20 03 00 84 00"}, // a client of a later version understands 5
		{"3.1.1: level 3", "10 0d 00 04 4d 51 54 54 03 02 00 00 00 01 61", "20 02 00 01"},
		{"3.1: level 2", "10 0f 00 06 4d 51 49 73 64 70 02 02 00 00 00 01 61", "20 02 00 01"},
		{"protocol name", "10 0d 00 04 58 51 54 54 04 02 00 00 00 01 61", none},
		{"3.1.1: no id, session to keep", "10 0c 00 04 4d 51 54 54 04 00 00 00 00 00", "20 02 00 02"}, // [MQTT-3.1.3-8]
		{"3.1: no id", "10 0e 00 06 4d 51 49 73 64 70 03 02 00 00 00 00", "20 02 00 02"},
		{"3.1.1: reserved flag", "10 0d 00 04 4d 51 54 54 04 03 00 00 00 01 61", none},           // [MQTT-3.1.2-3]
		{"3.1.1: password alone", "10 10 00 04 4d 51 54 54 04 42 00 00 00 01 61 00 01 70", none}, // 3.1.1: [MQTT-3.1.2-22]
		{"3.1.1: Will to #", "10 12 00 04 4d 51 54 54 04 06 00 00 00 01 61 00 01 23 00 00", none},
		{"5: reserved flag", "10 0e 00 04 4d 51 54 54 05 03 00 00 00 00 01 61", "20 03 00 81 00"},
		{"5: Will to #", "10 14 00 04 4d 51 54 54 05 06 00 00 00 00 01 61 00 00 01 23 00 00", "20 03 00 90 00"},
		{"5: an authentication method", "10 13 00 04 4d 51 54 54 05 02 00 00 05 15 00 02 78 79 00 01 61", "20 03 00 8c 00"}, // [MQTT-4.12.0-1]
		{"5: Receive Maximum 0", "10 11 00 04 4d 51 54 54 05 02 00 00 03 21 00 00 00 01 61", "20 03 00 82 00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := packet.V311
			if strings.Contains(tt.want, "20 03") {
				v = packet.V5
			}
			c := testbroker.DialRaw(t, b.Addr, v)
			c.SendHex(tt.send)
			if tt.want != none {
				frame := c.Expect(packet.TypeConnack)
				if v == packet.V5 { // but for the reason
					ack, err := packet.ParseConnack(v, frame)
					if err != nil {
						t.Fatal(err)
					}
					frame = packet.AppendConnack(nil, v, &packet.Connack{Code: ack.Code})
				}
				if got := fmt.Sprintf("% x", frame); got != tt.want {
					t.Errorf("CONNACK %s, want %s", got, tt.want)
				}
			}
			c.ExpectClosed()
		})
	}
}

// The CONNACK announces the limits that are in force, and says what the broker chose for the client. [MQTT-3.2.2-16] [MQTT-3.1.2-21] [MQTT-3.2.2-3]
func TestConnack(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{Set: []string{
		"limits.receive_maximum=77", "limits.max_packet=5000", "limits.topic_aliases=9", "limits.keep_alive_max=60s", "session.max_expiry=1h",
	}})
	c := testbroker.DialRaw(t, b.Addr, packet.V5)
	ack := c.Connect(&packet.Connect{Clean: true, KeepAlive: 100, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF})
	if ack.AssignedClientID == "" || ack.ServerKeepAlive != 60 || ack.SessionExpiry != 3600 || ack.ReceiveMaximum != 77 ||
		ack.MaximumPacketSize != 5000 || ack.TopicAliasMaximum != 9 || ack.SessionPresent || ack.HasMaximumQoS || ack.NoRetain || ack.NoShared || ack.NoWildcards || ack.NoSubscriptionIDs {
		t.Errorf("%+v", ack)
	}
	again := testbroker.DialRaw(t, b.Addr, packet.V5)
	ack2 := again.Connect(&packet.Connect{ClientID: ack.AssignedClientID, KeepAlive: 30, HasSessionExpiry: true, SessionExpiry: 3600, RequestResponseInfo: true})
	if !ack2.SessionPresent || ack2.HasServerKeepAlive || ack2.HasSessionExpiry || ack2.AssignedClientID != "" || ack2.ResponseInfo != "" || ack2.AuthMethod != "" {
		t.Errorf("%+v", ack2)
	}
	if code := c.ExpectClosed(); code != int(packet.CodeTakenOver) {
		t.Errorf("DISCONNECT 0x%X to the connection that was taken over", code)
	}
	// 3.1.1 with no id: each gets one of its own.
	one, two := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{Clean: true}), testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{Clean: true})
	one.Ping()
	two.Ping()
}

// A 3.1.1 client is not sent a DISCONNECT, which its protocol does not have from a server. 3.1.1: [MQTT-3.1.4-2]
func TestTakeoverOf311IsSilent(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for _, v := range []packet.Version{packet.V31, packet.V311} {
		c := testbroker.ConnectRaw(t, b.Addr, v, keeper("c"))
		testbroker.ConnectRaw(t, b.Addr, v, keeper("c")).Ping()
		if code := c.ExpectClosed(); code != -1 {
			t.Errorf("version %d: DISCONNECT 0x%X", v, code)
		}
	}
}

// A 3.1 client, as old as it is, is served. So are identifiers of more than 23 characters.
func TestVersion31(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	c := testbroker.ConnectRaw(t, b.Addr, packet.V31, &packet.Connect{ClientID: "a-client-identifier-of-more-than-23-characters"})
	if code := c.Subscribe("t", 2); code != 2 {
		t.Fatalf("SUBACK 0x%02X", code)
	}
	pub := testbroker.ConnectRaw(t, b.Addr, packet.V31, clean("pub"))
	publish2(pub, packet.V31, 1, "t", "x", false)
	ack(pub, packet.V31, packet.TypePubrel, 1)
	pub.ExpectAck(packet.TypePubcomp, 1)
	d := receive(t, c, 2, "x", false)
	ack(c, packet.V31, packet.TypePubrec, d.PacketID)
	c.ExpectAck(packet.TypePubrel, d.PacketID)
	ack(c, packet.V31, packet.TypePubcomp, d.PacketID)
	c.SendHex("8a 06 00 07 00 01 75 00") // SUBSCRIBE with DUP, which 3.1 has
	c.Expect(packet.TypeSuback)
	c.Ping()
}

// AUTH without a method in CONNECT, and whatever else a client may not send. [MQTT-4.12.0-6] [MQTT-4.13.1-1]
func TestUnexpectedPackets(t *testing.T) {
	t.Parallel()
	b := testbroker.Run(t, testbroker.Options{})
	for name, tt := range map[string]struct {
		send string
		code byte
	}{
		"AUTH":                         {"f0 06 18 04 15 00 01 6d", packet.CodeProtocol},
		"CONNECT again":                {"10 0e 00 04 4d 51 54 54 05 02 00 00 00 00 01 61", packet.CodeProtocol},
		"SUBACK":                       {"90 04 00 01 00 00", packet.CodeProtocol},
		"PINGRESP":                     {"d0 00", packet.CodeProtocol},
		"a subscription identifier":    {"30 06 00 01 61 02 0b 01", packet.CodeProtocol}, // [MQTT-3.3.4-6]
		"an alias above the maximum":   {"30 07 00 01 61 03 23 ff ff", packet.CodeAliasInvalid},
		"alias 0":                      {"30 07 00 01 61 03 23 00 00", packet.CodeAliasInvalid}, // [MQTT-3.3.2-8]
		"expiry in DISCONNECT after 0": {"e0 07 00 05 11 00 00 00 01", packet.CodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			c := testbroker.ConnectRaw(t, b.Addr, packet.V5, clean("c"))
			c.SendHex(tt.send)
			if code := c.ExpectClosed(); code != int(tt.code) {
				t.Errorf("DISCONNECT 0x%X, want 0x%X", code, tt.code)
			}
		})
	}
}

// Whoever comes back at once, again and again, is heard: no end of an old connection takes the new one with it.
func TestReconnectLoop(t *testing.T) {
	t.Parallel()
	versions(t, func(t *testing.T, v packet.Version) {
		b := testbroker.Run(t, testbroker.Options{})
		pub := testbroker.ConnectRaw(t, b.Addr, v, clean("pub"))
		for i := range 150 {
			c := testbroker.ConnectRaw(t, b.Addr, v, clean("c"))
			c.Subscribe("t", 0)
			pub.Publish("t", fmt.Sprint(i))
			receive(t, c, 0, fmt.Sprint(i), false)
			if i%2 == 0 {
				c.Close() // else it is taken over
			}
		}
	})
}
