package packet

import "testing"

// TestInvalid: a row is one way a client's packet can be wrong, and what it is told (a 3.1.1 client: nothing,
// its connection closes; ConnackCode tells the exceptions).
func TestInvalid(t *testing.T) {
	tests := []struct {
		name string
		v    Version
		wire string
		code byte
		rule string
	}{
		{"CONNECT: protocol name", 0, "10 [ s:MQTX 04 02 0000 s:a ]", CodeUnsupportedVersion, "MQTT-3.1.2-1"},
		{"CONNECT: protocol name of 3.1 with level 4", 0, "10 [ s:MQIsdp 04 02 0000 s:a ]", CodeUnsupportedVersion, "MQTT-3.1.2-2"},
		{"CONNECT: level 3 of the new name", 0, "10 [ s:MQTT 03 02 0000 s:a ]", CodeUnsupportedVersion, "MQTT-3.1.2-2"},
		{"CONNECT: level 6", 0, "10 [ s:MQTT 06 02 0000 00 s:a ]", CodeUnsupportedVersion, "MQTT-3.1.2-2"},
		{"CONNECT: level of a mosquitto bridge", 0, "10 [ s:MQTT 84 02 0000 s:a ]", CodeUnsupportedVersion, "MQTT-3.1.2-2"},
		{"CONNECT: empty", 0, "10 00", CodeMalformed, ""},
		{"CONNECT: ends after the name", 0, "10 [ s:MQTT ]", CodeMalformed, ""},
		{"CONNECT: ends after the level", 0, "10 [ s:MQTT 05 ]", CodeMalformed, ""},
		{"CONNECT: reserved flag", 0, "10 [ s:MQTT 04 03 0000 s:a ]", CodeMalformed, "MQTT-3.1.2-3"},
		{"CONNECT: Will QoS 3", 0, "10 [ s:MQTT 05 1e 0000 00 s:a 00 s:w s: ]", CodeMalformed, "MQTT-3.1.2-12"},
		{"CONNECT: Will QoS without a Will", 0, "10 [ s:MQTT 04 0a 0000 s:a ]", CodeMalformed, "MQTT-3.1.2-11"},
		{"CONNECT: Will Retain without a Will", 0, "10 [ s:MQTT 04 22 0000 s:a ]", CodeMalformed, "MQTT-3.1.2-13"},
		{"CONNECT: 3.1.1 password without a user name", 0, "10 [ s:MQTT 04 42 0000 s:a s:pw ]", CodeMalformed, "MQTT-3.1.2-22"},
		{"CONNECT: 3.1 without an id", 0, "10 [ s:MQIsdp 03 02 0000 s: ]", CodeClientIDInvalid, ""},
		{"CONNECT: 3.1.1 keeps a session without an id", 0, "10 [ s:MQTT 04 00 0000 s: ]", CodeClientIDInvalid, "MQTT-3.1.3-8"},
		{"CONNECT: id not UTF-8", 0, "10 [ s:MQTT 04 02 0000 0002 c328 ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"CONNECT: id with NUL", 0, "10 [ s:MQTT 04 02 0000 0003 610062 ]", CodeMalformed, "MQTT-1.5.4-2"},
		{"CONNECT: id with a surrogate", 0, "10 [ s:MQTT 04 02 0000 0003 eda080 ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"CONNECT: user name not UTF-8", 0, "10 [ s:MQTT 04 82 0000 s:a 0001 ff ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"CONNECT: user name missing", 0, "10 [ s:MQTT 04 82 0000 s:a ]", CodeMalformed, ""},
		{"CONNECT: password cut", 0, "10 [ s:MQTT 04 c2 0000 s:a s:u 0005 61 ]", CodeMalformed, ""},
		{"CONNECT: bytes behind the id", 0, "10 [ s:MQTT 04 02 0000 s:a 00 ]", CodeMalformed, ""},
		{"CONNECT: flags in the fixed header", 0, "11 [ s:MQTT 04 02 0000 s:a ]", CodeMalformed, "MQTT-2.1.3-1"},
		{"CONNECT: overlong remaining length in v5", 0, "10 8d 00 s:MQTT 05 02 0000 00 s:", CodeMalformed, "MQTT-1.5.5-1"},
		{"CONNECT: Will topic empty", 0, "10 [ s:MQTT 04 06 0000 s:a s: s:x ]", CodeTopicInvalid, "MQTT-4.7.3-1"},
		{"CONNECT: Will topic with a wildcard", 0, "10 [ s:MQTT 05 06 0000 00 s:a 00 s:w/# s:x ]", CodeTopicInvalid, ""},
		{"CONNECT: Will topic not UTF-8", 0, "10 [ s:MQTT 04 06 0000 s:a 0001 80 s:x ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"CONNECT: Receive Maximum 0", 0, "10 [ s:MQTT 05 02 0000 [ 21 0000 ] s:a ]", CodeProtocol, ""},
		{"CONNECT: Maximum Packet Size 0", 0, "10 [ s:MQTT 05 02 0000 [ 27 00000000 ] s:a ]", CodeProtocol, ""},
		{"CONNECT: Request Problem Information 2", 0, "10 [ s:MQTT 05 02 0000 [ 17 02 ] s:a ]", CodeProtocol, ""},
		{"CONNECT: authentication data without a method", 0, "10 [ s:MQTT 05 02 0000 [ 16 s:x ] s:a ]", CodeProtocol, ""},
		{"CONNECT: empty authentication method", 0, "10 [ s:MQTT 05 02 0000 [ 15 s: ] s:a ]", CodeProtocol, ""},
		{"CONNECT: user property not UTF-8", 0, "10 [ s:MQTT 05 02 0000 [ 26 s:k 0001 ff ] s:a ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"CONNECT: property length past the packet", 0, "10 [ s:MQTT 05 02 0000 7f ]", CodeMalformed, ""},
		{"CONNECT: property length overlong", 0, "10 [ s:MQTT 05 02 0000 8000 s:a ]", CodeMalformed, "MQTT-1.5.5-1"},
		{"CONNECT: property length of five bytes", 0, "10 [ s:MQTT 05 02 0000 8080808001 s:a ]", CodeMalformed, "MQTT-1.5.5-1"},
		{"CONNECT: no property length", 0, "10 [ s:MQTT 05 02 0000 ]", CodeMalformed, ""},
		{"CONNECT: property value past the property length", 0, "10 [ s:MQTT 05 02 0000 02 2100 14 s:a ]", CodeMalformed, ""},
		{"CONNECT: response topic of the Will with a wildcard", 0, "10 [ s:MQTT 05 06 0000 00 s:a [ 08 s:+/r ] s:w s: ]", CodeProtocol, "MQTT-3.3.2-14"},

		{"first packet is not CONNECT", 0, "c0 00", CodeProtocol, "MQTT-3.1.0-1"},
		{"PINGREQ with a body", V311, "c0 01 00", CodeMalformed, ""},
		{"PINGREQ with flags", V311, "c1 00", CodeMalformed, "MQTT-2.1.3-1"},
		{"a server's packet: CONNACK", V5, "20 03 00 00 00", CodeProtocol, ""},
		{"a server's packet: SUBACK", V311, "90 03 0001 00", CodeProtocol, ""},
		{"a server's packet: PINGRESP", V311, "d0 00", CodeProtocol, ""},

		{"SUBSCRIBE: the packet that kills mochi", V5, "82 06 00 01 00 00 01 61", CodeMalformed, ""},
		{"SUBSCRIBE: no filter", V311, "82 [ 0001 ]", CodeProtocol, "MQTT-3.8.3-2"},
		{"SUBSCRIBE: no filter in v5", V5, "82 [ 0001 00 ]", CodeProtocol, "MQTT-3.8.3-2"},
		{"SUBSCRIBE: empty", V5, "82 00", CodeMalformed, ""},
		{"SUBSCRIBE: empty filter", V5, "82 [ 0001 00 s: 00 ]", CodeMalformed, "MQTT-4.7.3-1"},
		{"SUBSCRIBE: packet id 0", V5, "82 [ 0000 00 s:a 00 ]", CodeProtocol, "MQTT-2.2.1-3"},
		{"SUBSCRIBE: flags", V5, "80 [ 0001 00 s:a 00 ]", CodeMalformed, "MQTT-2.1.3-1"},
		{"SUBSCRIBE: QoS 3", V5, "82 [ 0001 00 s:a 03 ]", CodeProtocol, ""},
		{"SUBSCRIBE: QoS 3 in 3.1.1", V311, "82 [ 0001 s:a 03 ]", CodeMalformed, "MQTT-3.8.3-4"},
		{"SUBSCRIBE: options of v5 in 3.1.1", V311, "82 [ 0001 s:a 04 ]", CodeMalformed, "MQTT-3.8.3-4"},
		{"SUBSCRIBE: reserved option", V5, "82 [ 0001 00 s:a 40 ]", CodeMalformed, "MQTT-3.8.3-5"},
		{"SUBSCRIBE: retain handling 3", V5, "82 [ 0001 00 s:a 30 ]", CodeProtocol, ""},
		{"SUBSCRIBE: no local on a shared subscription", V5, "82 [ 0001 00 s:$share/g/a 04 ]", CodeProtocol, "MQTT-3.8.3-4"},
		{"SUBSCRIBE: subscription identifier 0", V5, "82 [ 0001 [ 0b00 ] s:a 00 ]", CodeProtocol, ""},
		{"SUBSCRIBE: subscription identifier twice", V5, "82 [ 0001 [ 0b01 0b01 ] s:a 00 ]", CodeProtocol, ""},
		{"SUBSCRIBE: subscription identifier overlong", V5, "82 [ 0001 [ 0b 8100 ] s:a 00 ]", CodeMalformed, "MQTT-1.5.5-1"},
		{"SUBSCRIBE: subscription identifier cut", V5, "82 [ 0001 [ 0b 81 ] s:a 00 ]", CodeMalformed, ""},
		{"SUBSCRIBE: subscription identifier too long", V5, "82 [ 0001 [ 0b ffffffff01 ] s:a 00 ]", CodeMalformed, "MQTT-1.5.5-1"},
		{"SUBSCRIBE: filter not UTF-8", V311, "82 [ 0001 0002 61ff 00 ]", CodeMalformed, "MQTT-1.5.4-1"},
		{"SUBSCRIBE: filter with NUL", V311, "82 [ 0001 0002 6100 00 ]", CodeMalformed, "MQTT-1.5.4-2"},
		{"SUBSCRIBE: second filter cut", V311, "82 [ 0001 s:a 00 0004 61 ]", CodeMalformed, ""},
		{"SUBSCRIBE: options missing", V311, "82 [ 0001 s:a ]", CodeMalformed, ""},
		{"SUBSCRIBE: unknown property", V5, "82 [ 0001 [ 7f ] s:a 00 ]", CodeMalformed, ""},
		{"SUBSCRIBE: property identifier of two bytes", V5, "82 [ 0001 [ 8b00 01 ] s:a 00 ]", CodeMalformed, ""},

		{"UNSUBSCRIBE: no filter", V5, "a2 [ 0001 00 ]", CodeProtocol, "MQTT-3.10.3-2"},
		{"UNSUBSCRIBE: empty filter", V311, "a2 [ 0001 s: ]", CodeMalformed, "MQTT-4.7.3-1"},
		{"UNSUBSCRIBE: packet id 0", V311, "a2 [ 0000 s:a ]", CodeProtocol, "MQTT-2.2.1-3"},
		{"UNSUBSCRIBE: flags", V311, "a0 [ 0001 s:a ]", CodeMalformed, "MQTT-2.1.3-1"},
		{"UNSUBSCRIBE: cut", V311, "a2 [ 0001 0002 61 ]", CodeMalformed, ""},
		{"UNSUBSCRIBE: a property of SUBSCRIBE", V5, "a2 [ 0001 [ 0b01 ] s:a ]", CodeMalformed, ""},

		{"DISCONNECT: 3.1.1 with a code", V311, "e0 01 00", CodeMalformed, ""},
		{"DISCONNECT: a server's code", V5, "e0 01 8e", CodeProtocol, "MQTT-3.14.2-1"},
		{"DISCONNECT: unknown code", V5, "e0 01 7f", CodeProtocol, "MQTT-3.14.2-1"},
		{"DISCONNECT: bytes behind", V5, "e0 03 00 00 00", CodeMalformed, ""},
		{"DISCONNECT: flags", V5, "e2 00", CodeMalformed, "MQTT-2.1.3-1"},
		{"DISCONNECT: session expiry twice", V5, "e0 [ 00 [ 11 00000000 11 00000000 ] ]", CodeProtocol, ""},

		{"AUTH: 3.1.1", V311, "f0 00", CodeMalformed, ""},
		{"AUTH: success is the server's to say", V5, "f0 00", CodeProtocol, "MQTT-3.15.2-1"},
		{"AUTH: no method", V5, "f0 [ 18 00 ]", CodeProtocol, ""},
		{"AUTH: no property length", V5, "f0 01 18", CodeMalformed, ""},
		{"AUTH: unknown code", V5, "f0 [ 17 [ 15 s:M ] ]", CodeProtocol, "MQTT-3.15.2-1"},

		{"PUBACK: packet id 0", V311, "40 02 0000", CodeProtocol, "MQTT-2.2.1-3"},
		{"PUBACK: cut", V311, "40 01 00", CodeMalformed, ""},
		{"PUBACK: empty", V5, "40 00", CodeMalformed, ""},
		{"PUBACK: a code in 3.1.1", V311, "40 03 0001 00", CodeMalformed, ""},
		{"PUBACK: flags", V311, "42 02 0001", CodeMalformed, "MQTT-2.1.3-1"},
		{"PUBACK: a code of PUBREL's", V5, "40 03 0001 92", CodeProtocol, "MQTT-3.4.2-1"},
		{"PUBREC: unknown code", V5, "50 03 0001 01", CodeProtocol, "MQTT-3.5.2-1"},
		{"PUBREL: flags 0", V311, "60 02 0001", CodeMalformed, "MQTT-2.1.3-1"},
		{"PUBREL: a code of PUBACK's", V5, "62 03 0001 10", CodeProtocol, "MQTT-3.6.2-1"},
		{"PUBCOMP: a code of PUBACK's", V5, "70 03 0001 97", CodeProtocol, "MQTT-3.7.2-1"},
		{"PUBACK: property length past the packet", V5, "40 04 0001 00 01", CodeMalformed, ""},
		{"PUBACK: bytes behind the properties", V5, "40 05 0001 00 00 00", CodeMalformed, ""},
		{"PUBACK: reason string twice", V5, "40 [ 0001 00 [ 1f s:a 1f s:a ] ]", CodeProtocol, ""},
		{"PUBACK: reason string not UTF-8", V5, "40 [ 0001 00 [ 1f 0001 ff ] ]", CodeMalformed, "MQTT-1.5.4-1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantError(t, Check(tt.v, bin(tt.wire)), tt.code, tt.rule)
		})
	}
	wantError(t, Check(V5, nil), CodeMalformed, "")
}

// TestConnectVersionOnError: whoever refuses a CONNECT must know in which version to say so.
func TestConnectVersionOnError(t *testing.T) {
	tests := []struct {
		wire string
		want Version
	}{
		{"10 [ s:HTTP 04 ]", 0},
		{"10 00", 0},
		{"10 [ s:MQTT 06 02 ]", V5},
		{"10 [ s:MQTT 84 02 ]", V311},
		{"10 [ s:MQTT 00 02 ]", V311},
		{"10 [ s:MQIsdp 02 02 ]", V311},
		{"10 [ s:MQTT 05 ]", V5},
		{"10 [ s:MQTT 04 00 0000 s: ]", V311},
		{"10 [ s:MQTT 05 01 0000 00 s: ]", V5},
	}
	for _, tt := range tests {
		c, err := ParseConnect(bin(tt.wire))
		if err == nil || c == nil || c.Version != tt.want {
			t.Errorf("%s: %+v %v, want version %d", tt.wire, c, err, tt.want)
		}
	}
}

func TestInvalidFromServer(t *testing.T) {
	tests := []struct {
		name string
		v    Version
		wire string
		code byte
	}{
		{"CONNACK reserved flags", V311, "20 02 02 00", CodeMalformed},
		{"CONNACK session present in a refusal", V311, "20 02 01 05", CodeProtocol},
		{"CONNACK code 6", V311, "20 02 00 06", CodeProtocol},
		{"CONNACK code of DISCONNECT", V5, "20 03 00 8e 00", CodeProtocol},
		{"CONNACK v5 without a property length", V5, "20 02 00 00", CodeMalformed},
		{"CONNACK 3.1.1 with one", V311, "20 03 00 00 00", CodeMalformed},
		{"CONNACK Maximum QoS 2", V5, "20 [ 00 00 [ 24 02 ] ]", CodeProtocol},
		{"SUBACK without codes", V311, "90 02 0001", CodeMalformed},
		{"SUBACK code of v5 in 3.1.1", V311, "90 03 0001 8f", CodeProtocol},
		{"SUBACK code 3", V5, "90 04 0001 00 03", CodeProtocol},
		{"UNSUBACK with codes in 3.1.1", V311, "b0 03 0001 00", CodeMalformed},
		{"UNSUBACK granted QoS", V5, "b0 04 0001 00 01", CodeProtocol},
		{"another packet", V5, "d0 00", CodeMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			switch wire := bin(tt.wire); TypeOf(wire) {
			case TypeSuback:
				_, err = ParseSuback(tt.v, wire)
			case TypeUnsuback:
				_, err = ParseUnsuback(tt.v, wire)
			default:
				_, err = ParseConnack(tt.v, wire)
			}
			wantError(t, err, tt.code, "")
		})
	}
}
