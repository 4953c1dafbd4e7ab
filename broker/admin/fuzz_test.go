package admin

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/store"
)

// FuzzRequests sends arbitrary requests: paths, parameters, bodies. Each is answered with JSON, and what is wrong with it is never the server's fault.
func FuzzRequests(f *testing.F) {
	x := open(f, Options{Listen: "127.0.0.1:0"})
	x.put("a/b", store.Message{Payload: []byte("x")})
	x.put("$queue/q", store.Message{Payload: []byte("y")})
	for _, seed := range [][3]string{
		{"GET", "/v1/messages?topic=a/%23&from=1h&to=2026-01-01T00:00:00Z&limit=3&offset=1", ""},
		{"GET", "/v1/messages?id=x&limit=0", ""},
		{"GET", "/v1/messages?key=%00%ff", ""},
		{"GET", "/v1/topics?filter=%2B/b&after=a&limit=10001", ""},
		{"GET", "/v1/topic?name=a/b", ""},
		{"GET", "/v1/sessions?client=c&connected=true&after=x&limit=-1", ""},
		{"GET", "/v1/sessions/%2F", ""},
		{"POST", "/v1/queues", `{"name": "orders", "topics": ["shop/+/order"]}`},
		{"POST", "/v1/queues/q/bind", `{"filter": "shop/#"}`},
		{"POST", "/v1/queues/q/reset", `{"to": "offset:1"}`},
		{"POST", "/v1/queues/q/move", `{"to": "other", "count": 18446744073709551615}`},
		{"PATCH", "/v1/queues/q", `{"max_deliveries": 3, "retry_delay": ["1s"], "max_age": null}`},
		{"DELETE", "/v1/queues/q", ""},
		{"GET", "/v1/queues/q/messages?limit=5", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	routes := x.routes()
	f.Fuzz(func(t *testing.T, method, target, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			t.Skip()
		}
		r, err := http.NewRequest(method, "http://localhost", strings.NewReader(body))
		if err != nil {
			t.Skip()
		}
		r.URL.Path, r.URL.RawPath, r.URL.RawQuery = u.Path, u.RawPath, u.RawQuery
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s %s %s: %d %s", method, target, body, w.Code, w.Body)
		}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && !json.Valid(bytes.TrimSpace(w.Body.Bytes())) {
			t.Errorf("%s %s %s: not JSON: %s", method, target, body, w.Body)
		}
	})
}
