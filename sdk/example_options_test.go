package sdk_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/edgemq/edgemq/sdk"
)

func ExampleDial() {
	addr, stop := exampleBroker()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // bounds the first connection
	defer cancel()
	client, err := sdk.Dial(ctx, "mqtt://"+addr, sdk.WithClientID("meter-7"))
	if err != nil {
		log.Fatal(err) // errors.Is(err, sdk.ErrRefused): the broker is there and does not want us
	}
	defer client.Close()
	fmt.Println(client.ID(), client.Connected())
	// Output: meter-7 true
}

func ExampleWithClientID() {
	client, stop := exampleClient(sdk.WithClientID("till-3")) // the same at each start: the broker deduplicates by it
	defer stop()
	fmt.Println(client.ID())
	// Output: till-3
}

func ExampleWithCredentials() {
	client, stop := exampleClient(sdk.WithCredentials("till-3", "correct horse"))
	defer stop()
	fmt.Println(client.Connected())
	// Output: true
}

func ExampleWithCredentialsFunc() {
	asked := 0
	client, stop := exampleClient(sdk.WithCredentialsFunc(func() (user, password string) {
		asked++ // for each connection: a token that expires is fetched anew
		return "till-3", "token"
	}))
	defer stop()
	fmt.Println(client.Connected(), asked)
	// Output: true 1
}

func ExampleWithTLS() {
	pool := x509.NewCertPool()
	if pem, err := os.ReadFile("ca.pem"); err == nil {
		pool.AppendCertsFromPEM(pem)
	}
	_, err := sdk.Dial(context.Background(), "mqtts://broker.invalid", sdk.WithTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}))
	fmt.Println(err != nil) // nobody is there
	// Output: true
}

func ExampleWithHTTPHeader() {
	header := http.Header{"Authorization": {"Bearer token"}} // for the proxy in front of the broker
	_, err := sdk.Dial(context.Background(), "wss://broker.invalid/mqtt", sdk.WithHTTPHeader(header))
	fmt.Println(err != nil) // nobody is there
	// Output: true
}

func ExampleWithKeepAlive() {
	client, stop := exampleClient(sdk.WithKeepAlive(5 * time.Second)) // a dead connection is noticed within 7 s
	defer stop()
	fmt.Println(client.Connected())
	// Output: true
}

func ExampleWithConnectTimeout() {
	start := time.Now()
	_, err := sdk.Dial(context.Background(), "mqtt://127.0.0.1:1", sdk.WithConnectTimeout(200*time.Millisecond))
	fmt.Println(err != nil, time.Since(start) < 5*time.Second)
	// Output: true true
}

func ExampleWithWriteTimeout() {
	client, stop := exampleClient(sdk.WithWriteTimeout(2 * time.Second)) // on a network on which nothing takes longer
	defer stop()
	fmt.Println(client.Connected())
	// Output: true
}

func ExampleWithBackoff() {
	client, stop := exampleClient(sdk.WithBackoff(time.Second, time.Minute)) // gentler than the default, for thousands of devices
	defer stop()
	fmt.Println(client.Connected())
	// Output: true
}

func ExampleWithPatience() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := sdk.Dial(ctx, "mqtt://127.0.0.1:1", sdk.WithPatience()) // tries until ctx ends
	fmt.Println(err != nil, ctx.Err())
	// Output: true context deadline exceeded
}

func ExampleWithSession() {
	addr, stop := exampleBroker()
	defer stop()
	ctx := context.Background()
	client, err := sdk.Dial(ctx, addr, sdk.WithClientID("display"), sdk.WithSession())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Subscribe(ctx, "news"); err != nil {
		log.Fatal(err)
	}
	_ = client.Close() // away: the broker keeps what comes

	sender, err := sdk.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close()
	if _, err := sender.Producer().Send(ctx, sdk.NewMessage("news", []byte("meanwhile"))); err != nil {
		log.Fatal(err)
	}

	again, err := sdk.Dial(ctx, addr, sdk.WithClientID("display"), sdk.WithSession())
	if err != nil {
		log.Fatal(err)
	}
	defer again.Close()
	sub, err := again.Subscribe(ctx, "news")
	if err != nil {
		log.Fatal(err)
	}
	m, err := sub.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(m.Body()), m.Ack())
	// Output: meanwhile <nil>
}

func ExampleWithWindow() {
	client, stop := exampleClient(sdk.WithWindow(100, 1<<20)) // what a small device has memory for
	defer stop()
	fmt.Println(client.Pending())
	// Output: 0
}

func ExampleWithAdmin() {
	addr, admin, stop := exampleBrokerWithAdmin()
	defer stop()
	ctx := context.Background()
	client, err := sdk.Dial(ctx, addr, sdk.WithAdmin("http://"+admin, os.Getenv("EDGEMQ_ADMIN_TOKEN")))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Producer().Send(ctx, sdk.NewQueueMessage("jobs", nil)); err != nil {
		log.Fatal(err)
	}
	info, err := client.Queue(ctx, "jobs")
	fmt.Println(info.Messages, "job waits,", info.Consumers, "consumers:", err)
	// Output: 1 job waits, 0 consumers: <nil>
}

func ExampleWithLogger() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == "time" || a.Key == "broker" {
				return slog.Attr{} // another each time
			}
			return a
		},
	}))
	_, stop := exampleClient(sdk.WithClientID("logging"), sdk.WithLogger(logger))
	defer stop()
	// Output: level=INFO msg=connected component=sdk client=logging pending=0
}

// slow counts handlers that take too long; the embedded Metrics see to the rest.
type slow struct {
	*sdk.Metrics
	mu sync.Mutex
	n  int
}

func (s *slow) Handled(took time.Duration, err error) {
	s.Metrics.Handled(took, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if took > time.Second {
		s.n++
	}
}

func ExampleObserver() {
	observer := &slow{Metrics: sdk.NewMetrics()}
	_, stop := exampleClient(sdk.WithObserver(observer))
	defer stop()
	fmt.Println(observer.n, "slow handlers")
	// Output: 0 slow handlers
}

func ExampleWithObserver() {
	metrics := sdk.NewMetrics()
	client, stop := exampleClient(sdk.WithObserver(metrics))
	defer stop()
	if _, err := client.Producer().Send(context.Background(), sdk.NewMessage("t", nil)); err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(metrics) // in a program: http.Handle("/metrics", metrics)
	defer server.Close()
	fmt.Println(strings.Contains(metricsText(metrics), "edgemq_sdk_sent_messages_total 1"))
	// Output: true
}

func ExampleNewMetrics() {
	metrics := sdk.NewMetrics() // one for all clients of the program
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	line, _, _ := strings.Cut(w.Body.String(), "\n")
	fmt.Println(line)
	// Output: # TYPE edgemq_sdk_sent_messages_total counter
}

func ExampleState() {
	lost := func(s sdk.State) { // for WithStateFunc
		switch {
		case s.Connected:
			fmt.Println("back, sending", s.Pending, "again")
		case errors.Is(s.Err, sdk.ErrRefused):
			fmt.Println("not wanted any more:", s.Err)
		default:
			fmt.Println("lost, attempt", s.Attempt)
		}
	}
	lost(sdk.State{Attempt: 2})
	lost(sdk.State{Connected: true, Pending: 7})
	// Output:
	// lost, attempt 2
	// back, sending 7 again
}

func ExampleWithWill() {
	will := sdk.NewMessage("status/pump-1", []byte("gone"))
	will.Retain = true
	client, stop := exampleClient(sdk.WithWill(will, 1))
	defer stop()
	here := sdk.NewMessage("status/pump-1", []byte("here"))
	here.Retain = true
	_, err := client.Producer().Send(context.Background(), here)
	fmt.Println(err)
	// Output: <nil>
}
