package e2e

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// The rest of MQTT as mosquitto's tools see it.
func TestMosquittoTools(t *testing.T) {
	pub, sub := testbroker.Tool(t, "mosquitto_pub"), testbroker.Tool(t, "mosquitto_sub")
	for _, version := range []string{"311", "5"} {
		t.Run("mqtt-"+version, func(t *testing.T) {
			t.Parallel()
			p := testbroker.Start(t, testbroker.Options{})
			host, port, _ := strings.Cut(p.Addr, ":")
			base := []string{"-h", host, "-p", port, "-V", version}
			run := func(tool string, args ...string) string {
				t.Helper()
				return testbroker.Exec(t, nil, tool, append(args, base...)...)
			}

			run(pub, "-t", "kept/a", "-m", "retained", "-r", "-q", "1")
			p.Kill()
			p.Restart()
			if out := run(sub, "-t", "kept/#", "-C", "1", "-v", "-W", "20"); out != "kept/a retained\n" {
				t.Errorf("retained: %q", out)
			}
			run(pub, "-t", "kept/a", "-n", "-r", "-q", "1")
			if out := run(sub, "-t", "kept/#", "-t", "end", "-C", "1", "-W", "20", "-E"); out != "" {
				t.Errorf("retained and cleared: %q", out)
			}

			// Nothing says when mosquitto_sub has subscribed, so publish until it has what it waits for.
			for _, tt := range []struct {
				name, filter, qos string
				publish           []string
				want              string
			}{
				{"QoS 2", "two", "2", []string{"-t", "two", "-m", "exactly once", "-q", "2"}, "two exactly once\n"},
				{"QoS 0", "zero", "0", []string{"-t", "zero", "-m", "at most once"}, "zero at most once\n"},
				{"shared", "$share/group/s/+", "1", []string{"-t", "s/1", "-m", "to one", "-q", "1"}, "s/1 to one\n"},
				{"empty", "nothing", "1", []string{"-t", "nothing", "-n", "-q", "1"}, "nothing (null)\n"},
			} {
				cmd := exec.Command(sub, append([]string{"-t", tt.filter, "-q", tt.qos, "-C", "1", "-v", "-W", "20"}, base...)...)
				var out bytes.Buffer
				cmd.Stdout = &out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()
				if err := until(done, func() { run(pub, tt.publish...) }); err != nil || out.String() != tt.want {
					t.Errorf("%s: got %q, want %q, %v", tt.name, out.String(), tt.want, err)
				}
			}

			// A Will of a client that is killed.
			witness := dial(t, p, clean(client.V5))
			subscribe(t, witness, "will/gone")
			victim := exec.Command(sub, append([]string{"-t", "will/ready", "-q", "1", "--will-topic", "will/gone", "--will-payload", "farewell", "--will-qos", "1"}, base...)...)
			ready, err := victim.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := victim.Start(); err != nil {
				t.Fatal(err)
			}
			connected := make(chan error, 1)
			go func() {
				_, err := ready.Read(make([]byte, 1))
				connected <- err
			}()
			if err := until(connected, func() { run(pub, "-t", "will/ready", "-m", "x", "-q", "1") }); err != nil {
				t.Fatal(err)
			}
			_ = victim.Process.Kill()
			_ = victim.Wait()
			expect(t, witness, []string{"farewell"})
		})
	}
}

// until does something again and again until done has an answer.
func until(done <-chan error, again func()) error {
	for {
		again()
		select {
		case err := <-done:
			return err
		case <-timeAfter(50):
		}
	}
}
