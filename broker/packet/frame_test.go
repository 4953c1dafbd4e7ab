package packet

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// bin builds bytes from a small notation: hex digits, s:text for a string with its length in front, 'text' for
// bare text, and [ … ] for what has its length in front as a variable byte integer. So a v5 SUBSCRIBE is
//
//	82 [ 0001 [ 0b05 ] s:a/b 01 ]
func bin(s string) []byte {
	b, rest := binUntil(strings.Fields(s))
	if rest != nil {
		panic("unbalanced ] in " + s)
	}
	return b
}

func binUntil(tokens []string) (b []byte, rest []string) {
	b = []byte{}
	for len(tokens) > 0 {
		t := tokens[0]
		tokens = tokens[1:]
		switch {
		case t == "]":
			return b, append([]string{}, tokens...)
		case t == "[":
			var inner []byte
			inner, tokens = binUntil(tokens)
			b = append(appendVarint(b, uint32(len(inner))), inner...)
		case strings.HasPrefix(t, "s:"):
			b = appendString(b, t[2:])
		case t[0] == '\'':
			b = append(b, t[1:len(t)-1]...)
		default:
			raw, err := hex.DecodeString(t)
			if err != nil {
				panic(fmt.Sprintf("%q: %v", t, err))
			}
			b = append(b, raw...)
		}
	}
	return b, nil
}

// wantError holds an error against the reason code a client is to be told, 0 for none.
func wantError(t *testing.T, err error, code byte, rule string) {
	t.Helper()
	var e *Error
	switch {
	case code == 0 && err == nil:
	case code == 0:
		t.Errorf("refused: %v", err)
	case err == nil:
		t.Errorf("accepted, want 0x%02X", code)
	case !errors.As(err, &e):
		t.Errorf("error %T is not an *Error", err)
	case e.Code != code || rule != "" && e.Rule != rule:
		t.Errorf("got %v, want 0x%02X [%s]", e, code, rule)
	}
}

func TestSplit(t *testing.T) {
	tests := []struct {
		name         string
		b            string
		v            Version
		max          int
		size, header int
		code         byte
	}{
		{"nothing yet", "", V5, 0, 0, 0, 0},
		{"first byte only", "30", V311, 0, 0, 0, 0},
		{"length unfinished", "30 80 80", V311, 0, 0, 0, 0},
		{"length unfinished after three", "30 ff ff ff", V311, 0, 0, 0, 0},
		{"header only", "30 05", V311, 0, 7, 2, 0},
		{"two frames", "c000 c000", V311, 0, 2, 2, 0},
		{"two-byte length", "30 80 01", V5, 0, 131, 3, 0},
		{"three-byte length", "30 80 80 01", V5, 0, 16388, 4, 0},
		{"largest", "30 ff ff ff 7f", V5, 0, 268_435_460, 5, 0},
		{"largest over the limit", "30 ff ff ff 7f", V5, 1 << 20, 0, 0, CodeTooLarge},
		{"at the limit", "30 08", V5, 10, 10, 2, 0},
		{"one over the limit", "30 09", V5, 10, 0, 0, CodeTooLarge},
		{"five-byte length", "30 80 80 80 80 01", V311, 0, 0, 0, CodeMalformed},
		{"four continuation bytes", "30 ff ff ff ff", V311, 0, 0, 0, CodeMalformed},
		{"overlong length in v5", "30 85 00", V5, 0, 0, 0, CodeMalformed},
		{"overlong length in 3.1.1, which allows it", "30 85 00", V311, 0, 8, 3, 0},
		{"first packet CONNECT", "10 0c", 0, 0, 14, 2, 0},
		{"first packet PUBLISH", "30 05", 0, 0, 0, 0, CodeProtocol},
		{"first packet an HTTP request", "'GET' 20 '/'", 0, 0, 0, 0, CodeProtocol},
		{"first packet a TLS hello", "16 03 01", 0, 0, 0, 0, CodeMalformed},
		{"256 MB announced before CONNECT", "10 ff ff ff 7f", 0, 1 << 16, 0, 0, CodeTooLarge},
		{"type 0", "00 00", V5, 0, 0, 0, CodeMalformed},
		{"AUTH in 3.1.1", "f0 00", V311, 0, 0, 0, CodeMalformed},
		{"AUTH in v5", "f0 00", V5, 0, 2, 2, 0},
		{"QoS 3", "36 00", V5, 0, 0, 0, CodeMalformed},
		{"SUBSCRIBE with flags 0, refused on its first byte", "80", V5, 0, 0, 0, CodeMalformed},
		{"SUBSCRIBE with DUP in 3.1", "8a 05", V31, 0, 7, 2, 0},
		{"SUBSCRIBE with DUP in 3.1.1", "8a 05", V311, 0, 0, 0, CodeMalformed},
		{"version unheard of", "30 00", 77, 0, 0, 0, CodeMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			size, header, err := Split(bin(tt.b), tt.v, tt.max)
			wantError(t, err, tt.code, "")
			if size != tt.size || header != tt.header {
				t.Errorf("size %d header %d, want %d %d", size, header, tt.size, tt.header)
			}
		})
	}
}

// TestFixedHeaderFlags goes through all 256 first bytes in every version (table 2-2).
func TestFixedHeaderFlags(t *testing.T) {
	for _, v := range []Version{0, V31, V311, V5} {
		for b := range 256 {
			typ, flags := Type(b>>4), b&15
			ok := false
			switch typ {
			case TypeConnect:
				ok = flags == 0 || v <= V31 && flags&6 != 6 // ParseConnect has the last word
			case TypePublish:
				ok = v != 0 && flags&6 != 6
			case TypePubrel, TypeSubscribe, TypeUnsubscribe:
				ok = v != 0 && (flags == 2 || v == V31 && flags == 10)
			case TypeAuth:
				ok = v == V5 && flags == 0
			case 0:
			default:
				ok = v != 0 && flags == 0
			}
			if _, _, err := Split([]byte{byte(b), 0}, v, 0); (err == nil) != ok {
				t.Errorf("version %d first byte %02x: %v, want accepted %v", v, b, err, ok)
			}
		}
	}
}

func TestTypeString(t *testing.T) {
	if got := TypeOf([]byte{0x82}).String(); got != "SUBSCRIBE" {
		t.Error(got)
	}
}

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		"packet: PUBLISH with QoS 3 (0x81) [MQTT-3.3.1-4]":              checkFirst(0x36, V5),
		"packet: packet ends in the middle of a field (0x81)":           errShort,
		"packet: first packet is not CONNECT (0x82) [MQTT-3.1.0-1]":     checkFirst(0x30, 0),
		"packet: wrong flags in the fixed header (0x81) [MQTT-2.1.3-1]": checkFirst(0x13, V311),
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

// TestConnackCode: what a 3.1.1 client can be told (table 3.1 of MQTT 3.1.1); the rest is a closed connection.
func TestConnackCode(t *testing.T) {
	old := map[byte]byte{
		0: 0, CodeUnsupportedVersion: 1, CodeClientIDInvalid: 2, CodeServerUnavailable: 3, CodeServerBusy: 3, CodeShuttingDown: 3,
		CodeConnectionRate: 3, CodeQuotaExceeded: 3, CodeBadUserOrPassword: 4, CodeNotAuthorized: 5, CodeBanned: 5, CodeBadAuthMethod: 5,
	}
	for c := range 256 {
		want, wantOK := old[byte(c)]
		if got, ok := ConnackCode(V311, byte(c)); got != want || ok != wantOK {
			t.Errorf("0x%02X: %d %v, want %d %v", c, got, ok, want, wantOK)
		}
		if got, ok := ConnackCode(V5, byte(c)); got != byte(c) || !ok {
			t.Errorf("v5 0x%02X: %d %v", c, got, ok)
		}
	}
}
