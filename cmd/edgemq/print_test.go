package main

import (
	"bytes"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
)

func TestPrint(t *testing.T) {
	text := client.Message{Topic: "a/b", Payload: []byte("21.5 °C <b>"), QoS: 1, User: []client.Property{{Name: "k", Value: "v"}}}
	binary := client.Message{Topic: "a", Payload: []byte{0xFF, 0}, CorrelationData: []byte{1}}
	for _, tt := range []struct {
		name          string
		verbose, json bool
		m             client.Message
		want          string
	}{
		{"payload", false, false, text, "21.5 °C <b>\n"},
		{"topic and payload", true, false, text, "a/b 21.5 °C <b>\n"},
		{"binary as it is", false, false, binary, "\xff\x00\n"},
		{"JSON", false, true, text, `{"topic":"a/b","payload":"21.5 °C <b>","qos":1,"user_properties":[{"name":"k","value":"v"}]}` + "\n"},
		{"JSON of binary", false, true, binary, `{"topic":"a","payload_base64":"/wA=","qos":0,"correlation_data_base64":"AQ=="}` + "\n"},
		{"JSON of nothing", false, true, client.Message{Topic: "a"}, `{"topic":"a","payload":"","qos":0}` + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			p := newPrinter(&b, tt.verbose, tt.json)
			if err := p.message(&tt.m); err != nil {
				t.Fatal(err)
			}
			if err := p.Flush(); err != nil {
				t.Fatal(err)
			}
			if b.String() != tt.want {
				t.Errorf("got  %q\nwant %q", b.String(), tt.want)
			}
		})
	}
}

func TestExpiryFlag(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want uint32
		ok   bool
	}{
		{"0", 0, true},
		{"30s", 30, true},
		{"7d", 604800, true},
		{"never", 0xFFFFFFFF, true},
		{"100ms", 0, false},
		{"-1s", 0, false},
		{"10", 0, false},
		{"200y", 0, false},
	} {
		got, err := parseExpiry("expiry", tt.in)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: %d, %v", tt.in, got, err)
		}
		if err != nil && exitCode(err) != exitUsage {
			t.Errorf("%s: exit code %d", tt.in, exitCode(err))
		}
	}
}
