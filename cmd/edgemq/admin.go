package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/broker/admin"
	"github.com/edgemq/edgemq/internal/config"
	"github.com/edgemq/edgemq/internal/diagnose"
)

// adminFlags are what the commands that ask the running broker share.
type adminFlags struct {
	settingFlags
	url, token, data string
	json             bool
}

func (f *adminFlags) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.url, "admin", "", "admin API of the broker, as in http://127.0.0.1:18830 or unix:/var/lib/edgemq/admin.sock\n(default: the socket in the data directory, else admin.listen, both from the settings)")
	fs.StringVar(&f.token, "token", "", "token for the admin API (default: admin.token of the settings)")
	fs.StringVarP(&f.file, "config", "c", "", "settings `file` of the broker; default: $"+config.EnvFile+", else none")
	fs.StringVarP(&f.data, "data", "d", "", "data `directory` of the broker, to find its socket")
	fs.StringArrayVar(&f.set, "set", nil, "a setting, as `key=value`; repeatable")
	fs.BoolVar(&f.json, "json", false, "print what the broker answers, as JSON")
}

// api is the admin API of a running broker.
type api struct {
	http  http.Client
	base  string
	token string
	where string // for messages
}

// open finds the API.
func (f *adminFlags) open() (*api, error) {
	var more []config.Setting
	if f.data != "" {
		more = append(more, config.Setting{Key: "data", Value: f.data, Origin: "--data"})
	}
	c, err := f.load(more...)
	if err != nil {
		return nil, err
	}
	a := &api{token: f.token, where: f.url}
	if a.token == "" {
		a.token = c.Admin.Token
	}
	socket := c.AdminSocket()
	switch path, isSocket := strings.CutPrefix(f.url, "unix:"); {
	case isSocket:
		return a.through(path), nil
	case f.url != "":
		if u, err := url.Parse(f.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, usageError("--admin: %q is not http://host:port, https://host:port or unix:<path>", f.url)
		}
		a.base = strings.TrimSuffix(f.url, "/")
	case socket != "" && exists(socket):
		return a.through(socket), nil
	case f.data != "" && socket != "": // rather than whatever broker has the usual address: this one does not run
		return a.through(socket), nil
	case c.Admin.Listen != config.Off:
		a.base = "http://" + c.Admin.Listen
		a.where = a.base
	default:
		return nil, usageError("admin.listen is off, and there is no socket %s: is the broker running? --data or --admin say where", socket)
	}
	return a, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// through has the API talk through a unix socket.
func (a *api) through(path string) *api {
	a.base, a.where = "http://localhost", path
	a.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	return a
}

// call sends a request and decodes the answer into out, unless that is nil. The answer as it came is returned too.
func (a *api) call(ctx context.Context, method, path string, query url.Values, in, out any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.http.Do(r)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("no broker at %s: is it running? --admin, --data or --config say where it is", a.where)
		} else if u, parseErr := url.Parse(a.base); parseErr == nil && a.http.Transport == nil && ctx.Err() == nil {
			if hint := diagnose.WebHint(ctx, u, err); hint != "" {
				err = fmt.Errorf("%w; %s", err, hint)
			}
		}
		return nil, &exitError{exitConnect, err}
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, &exitError{exitConnect, err}
	}
	if resp.StatusCode >= 400 {
		var e admin.Error
		if json.Unmarshal(b, &e) != nil || e.Error == "" {
			e.Error = resp.Status
		}
		return nil, &exitError{exitRefused, errors.New(e.Error)}
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			return nil, fmt.Errorf("answer of %s: %w", a.where, err)
		}
	}
	return b, nil
}

// ask calls the API and prints the answer: as it came with --json, else by show.
func (f *adminFlags) ask(cmd *cobra.Command, method, path string, query url.Values, in, out any, show func(w io.Writer)) error {
	a, err := f.open()
	if err != nil {
		return err
	}
	b, err := a.call(cmd.Context(), method, path, query, in, out)
	if err != nil {
		return err
	}
	if f.json {
		_, err = cmd.OutOrStdout().Write(b)
		return err
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	show(w)
	return w.Flush()
}

// done prints what was done, for requests without another answer.
func (f *adminFlags) done(cmd *cobra.Command, method, path string, in any, text string) error {
	var d admin.Done
	return f.ask(cmd, method, path, nil, in, &d, func(w io.Writer) {
		if strings.Contains(text, "%d") {
			fmt.Fprintf(w, text+"\n", d.Messages)
		} else {
			fmt.Fprintln(w, text)
		}
	})
}

// row writes a line of a table.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, c)
	}
	fmt.Fprintln(w)
}

// messages is a number of messages for people.
func messages[T int | int64 | uint64](n T) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprint(n, " messages")
}

// byteSize is a number of bytes for people.
func byteSize[T int64 | uint64](n T) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && v >= 1024 {
		v, units = v/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}

// ago is how long ago a time was.
func ago(t *time.Time) string {
	if t == nil {
		return "-"
	}
	switch d := time.Since(*t); {
	case d < time.Second:
		return "0s"
	case d < time.Hour:
		return d.Truncate(time.Second).String()
	case d < 48*time.Hour:
		return d.Truncate(time.Minute).String()
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// at is a time for people.
func at(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05.000")
}

// none is a text, or a dash for the empty one.
func none(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
