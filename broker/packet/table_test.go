package packet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// table24 is table 2-4 of MQTT 5: identifier, a sound value, and the packets it may stand in.
const table24 = `
01 01             PUBLISH Will
02 00000001       PUBLISH Will
03 0001'a'        PUBLISH Will
08 0001'a'        PUBLISH Will
09 0001'a'        PUBLISH Will
0b 01             delivery SUBSCRIBE
11 00000001       CONNECT CONNACK DISCONNECT
12 0001'a'        CONNACK
13 0001           CONNACK
15 0001'a'        CONNECT CONNACK AUTH
16 0001'a'        CONNECT CONNACK AUTH
17 01             CONNECT
18 00000001       Will
19 01             CONNECT
1a 0001'a'        CONNACK
1c 0001'a'        CONNACK DISCONNECT
1f 0001'a'        CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH
21 0001           CONNECT CONNACK
22 0001           CONNECT CONNACK
23 0001           PUBLISH
24 01             CONNACK
25 01             CONNACK
26 0001'a'0001'b' CONNECT CONNACK PUBLISH Will PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK DISCONNECT AUTH
27 00000001       CONNECT CONNACK
28 01             CONNACK
29 01             CONNACK
2a 01             CONNACK`

// carriers puts a property block into an otherwise sound packet of each kind.
var carriers = map[string]func(props string) error{
	"CONNECT": func(p string) error {
		_, err := ParseConnect(bin("10 [ s:MQTT 05 02 0000 [ " + p + " ] s:a ]"))
		return err
	},
	"Will": func(p string) error {
		_, err := ParseConnect(bin("10 [ s:MQTT 05 06 0000 00 s:a [ " + p + " ] s:w s: ]"))
		return err
	},
	"CONNACK":  func(p string) error { _, err := ParseConnack(V5, bin("20 [ 00 00 [ "+p+" ] ]")); return err },
	"PUBLISH":  func(p string) error { return ParsePublish(V5, bin("30 [ s:a [ "+p+" ] ]"), new(Publish)) },
	"delivery": func(p string) error { return ParseDelivery(V5, bin("30 [ s:a [ "+p+" ] ]"), new(Publish)) },
	"PUBACK":   func(p string) error { return ParseAck(V5, bin("40 [ 0001 00 [ "+p+" ] ]"), new(Ack)) },
	"PUBREC":   func(p string) error { return ParseAck(V5, bin("50 [ 0001 00 [ "+p+" ] ]"), new(Ack)) },
	"PUBREL":   func(p string) error { return ParseAck(V5, bin("62 [ 0001 00 [ "+p+" ] ]"), new(Ack)) },
	"PUBCOMP":  func(p string) error { return ParseAck(V5, bin("70 [ 0001 00 [ "+p+" ] ]"), new(Ack)) },
	"SUBSCRIBE": func(p string) error {
		_, err := ParseSubscribe(V5, bin("82 [ 0001 [ "+p+" ] s:a 00 ]"))
		return err
	},
	"SUBACK":      func(p string) error { _, err := ParseSuback(V5, bin("90 [ 0001 [ "+p+" ] 00 ]")); return err },
	"UNSUBSCRIBE": func(p string) error { _, err := ParseUnsubscribe(V5, bin("a2 [ 0001 [ "+p+" ] s:a ]")); return err },
	"UNSUBACK":    func(p string) error { _, err := ParseUnsuback(V5, bin("b0 [ 0001 [ "+p+" ] 00 ]")); return err },
	"DISCONNECT":  func(p string) error { _, err := ParseDisconnect(V5, bin("e0 [ 00 [ "+p+" ] ]")); return err },
	"AUTH":        func(p string) error { _, err := ParseAuth(bin("f0 [ 18 [ 15 s:M " + p + " ] ]")); return err },
}

// TestPropertyTable tries every property in every packet, alone, twice, and cut at every byte.
func TestPropertyTable(t *testing.T) {
	known := map[byte]bool{}
	for _, line := range strings.Split(strings.TrimSpace(table24), "\n") {
		f := strings.Fields(line)
		value := strings.ReplaceAll(strings.ReplaceAll(f[1], "'a'", "61"), "'b'", "62")
		prop, allowed := f[0]+value, " "+strings.Join(f[2:], " ")+" "
		id, _ := strconv.ParseUint(f[0], 16, 8)
		known[byte(id)] = true
		if strings.Contains(allowed, " PUBLISH ") {
			allowed += "delivery "
		}
		for where, parse := range carriers {
			name := fmt.Sprintf("property %s in %s", f[0], where)
			repeats := id == 0x26 || id == 0x0b && where == "delivery" || id == 0x15 && where == "AUTH"
			one, two := parse(prop), parse(prop+" "+prop)
			switch {
			case !strings.Contains(allowed, " "+where+" "):
				var e *Error
				if !errors.As(one, &e) || e.Code != CodeMalformed && e.Code != CodeProtocol {
					t.Errorf("%s: %v, want it refused", name, one)
				}
				continue
			case id == 0x15 && where == "AUTH": // the carrier has one already
				wantError(t, one, CodeProtocol, "")
			case id == 0x16 && where == "CONNECT": // needs 0x15 beside it
				wantError(t, parse("15 0001 61 "+prop), 0, "")
			case one != nil:
				t.Errorf("%s: %v", name, one)
			}
			if !repeats && two == nil {
				t.Errorf("%s: accepted twice", name)
			} else if repeats && id != 0x15 && two != nil {
				t.Errorf("%s twice: %v", name, two)
			}
			for n := 2; n < len(prop); n += 2 {
				if err := parse(prop[:n]); err == nil {
					t.Errorf("%s: accepted cut to %s", name, prop[:n])
				}
			}
		}
	}
	for id := range 256 {
		if !known[byte(id)] {
			for where, parse := range carriers {
				if err := parse(fmt.Sprintf("%02x 00000000", id)); err == nil {
					t.Errorf("unknown property %02x accepted in %s", id, where)
				}
			}
		}
	}
}

// table26 is table 2-6 and the tables of the packets: who may send which code where.
const table26 = `
CONNACK     00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f
PUBACK      00 10 80 83 87 90 91 97 99
PUBREC      00 10 80 83 87 90 91 97 99
PUBREL      00 92
PUBCOMP     00 92
SUBACK      00 01 02 80 83 87 8f 91 97 9e a1 a2
UNSUBACK    00 11 80 83 87 8f 91
client      00 04 80 81 82 83 90 93 94 95 96 97 98 99
server      00 80 81 82 83 87 89 8b 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2
AUTH        18 19`

func TestCodeTable(t *testing.T) {
	send := map[string]func(c string) error{
		"CONNACK":  func(c string) error { _, err := ParseConnack(V5, bin("20 03 00 "+c+" 00")); return err },
		"PUBACK":   func(c string) error { return ParseAck(V5, bin("40 03 0001 "+c), new(Ack)) },
		"PUBREC":   func(c string) error { return ParseAck(V5, bin("50 03 0001 "+c), new(Ack)) },
		"PUBREL":   func(c string) error { return ParseAck(V5, bin("62 03 0001 "+c), new(Ack)) },
		"PUBCOMP":  func(c string) error { return ParseAck(V5, bin("70 03 0001 "+c), new(Ack)) },
		"SUBACK":   func(c string) error { _, err := ParseSuback(V5, bin("90 04 0001 00 "+c)); return err },
		"UNSUBACK": func(c string) error { _, err := ParseUnsuback(V5, bin("b0 04 0001 00 "+c)); return err },
		"client":   func(c string) error { _, err := ParseDisconnect(V5, bin("e0 01 "+c)); return err },
		"server":   func(c string) error { _, err := ParseServerDisconnect(bin("e0 01 " + c)); return err },
		"AUTH":     func(c string) error { _, err := ParseAuth(bin("f0 [ " + c + " [ 15 s:M ] ]")); return err },
	}
	for _, line := range strings.Split(strings.TrimSpace(table26), "\n") {
		f := strings.Fields(line)
		allowed := map[string]bool{}
		for _, c := range f[1:] {
			allowed[c] = true
		}
		for c := range 256 {
			hex := fmt.Sprintf("%02x", c)
			if err := send[f[0]](hex); (err == nil) != allowed[hex] {
				t.Errorf("code %s in %s: %v, want accepted %v", hex, f[0], err, allowed[hex])
			}
		}
	}
}

// TestStrings puts every kind of bad string (1.5.4) where a string may stand, at every length around the eight
// bytes that checkUTF8 takes at a step.
func TestStrings(t *testing.T) {
	bad := map[string]string{"00": "MQTT-1.5.4-2", "ff": "MQTT-1.5.4-1", "80": "MQTT-1.5.4-1", "eda080": "MQTT-1.5.4-1", "c080": "MQTT-1.5.4-1", "f4908080": "MQTT-1.5.4-1"}
	good := []string{"efbbbf", "efbfbf", "f48fbfbf", "01", "7f", "c280"}
	places := []string{
		"10 [ s:MQTT 05 02 0000 00 %s ]", "10 [ s:MQTT 04 82 0000 s:a %s ]", "10 [ s:MQTT 05 06 0000 00 s:a 00 %s s: ]",
		"10 [ s:MQTT 05 02 0000 [ 26 %s s:v ] s:a ]", "10 [ s:MQTT 05 02 0000 [ 15 %s ] s:a ]", "30 [ %s 00 ]",
		"30 [ s:a [ 03 %s ] ]", "30 [ s:a [ 26 s:k %s ] ]", "82 [ 0001 00 %s 00 ]", "a2 [ 0001 00 %s ]", "e0 [ 00 [ 1f %s ] ]", "40 [ 0001 00 [ 1f %s ] ]",
	}
	for _, place := range places {
		v := V5
		if strings.Contains(place, "MQTT 04") {
			v = V311
		}
		for pad := range 18 {
			for after := range 2 {
				put := func(x string) []byte {
					s := strings.Repeat("61", pad) + x + strings.Repeat("62", 9*after)
					return bin(fmt.Sprintf(place, fmt.Sprintf("%04x%s", len(s)/2, s)))
				}
				for x, rule := range bad {
					wantError(t, Check(v, put(x)), CodeMalformed, rule)
				}
				for _, x := range good {
					wantError(t, Check(v, put(x)), 0, "")
				}
			}
		}
	}
}

func TestVarint(t *testing.T) {
	for _, v := range []uint32{0, 1, 127, 128, 16383, 16384, 2097151, 2097152, MaxRemaining} {
		b := appendVarint(nil, v)
		got, n := varint(b)
		if got != v || n != len(b) || n != varintSize(v) || overlong(v, n) {
			t.Errorf("%d: %x reads %d in %d bytes, size %d", v, b, got, n, varintSize(v))
		}
		for k := range b {
			if _, n := varint(b[:k]); n != 0 {
				t.Errorf("%x: complete at %d bytes", b, k)
			}
		}
	}
	if !overlong(127, 2) || !overlong(0, 4) {
		t.Error("padded integers pass for short ones")
	}
}
