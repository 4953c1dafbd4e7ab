// Package admin is the broker's side door: an HTTP API for tools and people (GET /v1/…), metrics in Prometheus's text
// format (GET /metrics), health checks, and the statistics under $SYS/broker/.
//
// Everything here reads snapshots and counters; nothing is on the path of a message. docs/OPERATIONS.md describes the API for
// its users.
package admin

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/session"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/broker/transport"
	"github.com/edgemq/edgemq/store"
)

// Options say where the API is served.
type Options struct {
	Listen  string // host:port; "" serves none
	Socket  string // path of a unix socket; "" serves none
	Token   string // what requests must carry as a bearer token, but for the socket and health checks; "" asks for none
	Version string // of the broker
}

// Parts are what the API shows and changes.
type Parts struct {
	Store    *store.Store
	Queues   *feed.Queues
	Sessions *session.Manager
	Topics   topic.Limits
	Logger   *slog.Logger
}

// Server serves the API. Run serves until its context ends; Close releases what New opened if Run is never called.
type Server struct {
	Parts
	opt     Options
	started time.Time
	ready   atomic.Bool // the broker serves clients
	http    http.Server

	mu        sync.Mutex
	listeners []net.Listener
}

// retryListen is how often an address that somebody else has is tried again.
const retryListen = 5 * time.Second

// maxBody bounds a request.
const maxBody = 1 << 20

// New opens the addresses. One that another process has is not an error: the broker's clients matter more, and Run tries
// again.
func New(o Options, p Parts) (*Server, error) {
	s := &Server{Parts: p, opt: o, started: time.Now()}
	s.Logger = p.Logger.With("component", "admin")
	protect := http.NewCrossOriginProtection() // a web page in a browser on this machine must not administer the broker
	protect.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, errors.New("this is not for web pages of other hosts"))
	}))
	s.http = http.Server{
		Handler:           protect.Handler(s.checked(s.routes())),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
	}
	if o.Listen != "" {
		l, err := net.Listen("tcp", o.Listen)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			s.Logger.Warn("admin API: the address is taken, trying again until it is free", "address", o.Listen, "err", err)
		case err != nil:
			return nil, fmt.Errorf("admin API: %w", err)
		default:
			s.listeners = append(s.listeners, l)
		}
	}
	if o.Socket != "" {
		l, err := transport.ListenUnix(o.Socket, 0o600)
		if err != nil { // a path too long for a socket, a file system without any, or a path that is somebody else's
			s.Logger.Warn("admin API: no socket", "path", o.Socket, "err", err)
		} else {
			s.listeners = append(s.listeners, local{l})
		}
	}
	return s, nil
}

// local is the listener on the socket: whoever may open it needs no token.
type local struct{ net.Listener }

// localConn marks a request that came through the socket.
type localConn struct{}

// Addr returns the address of the API, "" if it has none (yet).
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		if _, ok := l.(local); !ok {
			return l.Addr().String()
		}
	}
	return ""
}

// Ready says that the broker serves clients, or does not any more.
func (s *Server) Ready(ready bool) { s.ready.Store(ready) }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	serve := func(l net.Listener) {
		_, isLocal := l.(local)
		s.Logger.Info("admin API", "address", l.Addr().String())
		wg.Go(func() {
			srv := &s.http
			if isLocal {
				l = markedListener{l}
			}
			if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
				s.Logger.Error("admin API ended", "err", err)
			}
		})
	}
	s.http.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if _, ok := c.(markedConn); ok {
			return context.WithValue(ctx, localConn{}, true)
		}
		return ctx
	}
	s.mu.Lock()
	for _, l := range s.listeners {
		serve(l)
	}
	s.mu.Unlock()
	for s.opt.Listen != "" && s.Addr() == "" && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(retryListen):
			if l, err := net.Listen("tcp", s.opt.Listen); err == nil {
				s.mu.Lock()
				s.listeners = append(s.listeners, l)
				s.mu.Unlock()
				serve(l)
			}
		}
	}
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.http.Shutdown(end); err != nil {
		return s.http.Close()
	}
	return nil
}

// Close releases the addresses.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		_ = l.Close() // closed already if Run was called
	}
}

type markedListener struct{ net.Listener }

type markedConn struct{ net.Conn }

// Accept implements net.Listener.
func (l markedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return markedConn{c}, nil
}

// checked lets a request through that may be answered: with the token, if there is one; and for a name or address that is this
// machine's, if there is none, or a page could reach us through a name of its own that it points here.
func (s *Server) checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		health := r.URL.Path == "/health" || r.URL.Path == "/ready"
		switch {
		case r.Context().Value(localConn{}) != nil, health:
		case s.opt.Token != "":
			got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || subtle.ConstantTimeCompare([]byte(got), []byte(s.opt.Token)) != 1 {
				w.Header().Set("WWW-Authenticate", "Bearer")
				fail(w, http.StatusUnauthorized, errors.New("a token is needed: Authorization: Bearer <admin.token>"))
				return
			}
		case !localHost(r.Host):
			fail(w, http.StatusForbidden, fmt.Errorf("host %q is not this machine's", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// routes are the API.
func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", s.health)
	m.HandleFunc("GET /ready", s.health)
	m.HandleFunc("GET /metrics", s.metrics)
	m.HandleFunc("GET /v1/status", s.status)
	m.HandleFunc("GET /v1/store", s.storeStats)
	s.queueRoutes(m)
	m.HandleFunc("GET /v1/topics", s.topics)
	m.HandleFunc("GET /v1/topic", s.topicStat)
	m.HandleFunc("GET /v1/messages", s.messages)
	m.HandleFunc("GET /v1/connections", s.connections)
	m.HandleFunc("GET /v1/sessions", s.sessions)
	m.HandleFunc("GET /v1/sessions/{client}", s.session)
	m.HandleFunc("DELETE /v1/sessions/{client}", s.deleteSession)
	m.HandleFunc("POST /v1/sessions/{client}/disconnect", s.disconnect)
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Errorf("there is no %s %s", r.Method, r.URL.Path))
	})
	return m
}

// badRequest is an error of the caller's.
type badRequest struct{ error }

func bad(format string, args ...any) error { return badRequest{fmt.Errorf(format, args...)} }

// answer writes a value, or what went wrong.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		fail(w, statusOf(err), err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encode(w, v)
}

// encode writes JSON that people can read: < and > stay what they are.
func encode(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // the client is gone
}

func statusOf(err error) int {
	var te *topic.Error
	switch _, isBad := errors.AsType[badRequest](err); {
	case isBad, errors.As(err, &te), errors.Is(err, feed.ErrPolicy):
		return http.StatusBadRequest
	case errors.Is(err, feed.ErrNoQueue), errors.Is(err, session.ErrNoSession), errors.Is(err, errNoTopic):
		return http.StatusNotFound
	case errors.Is(err, store.ErrFull):
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

func fail(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	encode(w, Error{Error: err.Error()})
}

// body reads a request's JSON, which is one value; an empty one leaves v as it is.
func body(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return bad("request body: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad("request body: there is something after its value")
	}
	return nil
}
