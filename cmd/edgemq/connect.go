package main

import (
	"errors"
	"math"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/config"
)

// connectFlags are what pub and sub share.
type connectFlags struct {
	url, host          string
	port               uint16
	mqtt               string
	id                 string
	username, password string
	passwordFile       string
	tls                client.TLS
	keepAlive, timeout time.Duration
	version            client.Version
}

func (f *connectFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.url, "url", "", "broker, as in mqtt://host:port, mqtts://, ws://host:port/mqtt, wss:// or unix:///path; instead of --host and --port")
	fs.StringVar(&f.host, "host", "127.0.0.1", "broker's host")
	fs.Uint16VarP(&f.port, "port", "p", 1883, "broker's port (with TLS 8883)")
	fs.StringVar(&f.id, "id", "", "client id (default: chosen by the broker)")
	durationVar(cmd, &f.keepAlive, "keep-alive", 30*time.Second, "keep alive interval")
	f.addLogin(cmd, "5")
}

// addLogin adds how to log in, without where and as whom.
func (f *connectFlags) addLogin(cmd *cobra.Command, version string) {
	fs := cmd.Flags()
	fs.StringVar(&f.mqtt, "mqtt", version, "protocol version: 5 or 3.1.1")
	fs.StringVar(&f.username, "username", "", "user name")
	fs.StringVar(&f.password, "password", "", "password; whoever lists the processes of this machine sees it (default: $"+passwordEnv+", with --username)")
	fs.StringVar(&f.passwordFile, "password-file", "", "the password is the first line of this `file`")
	fs.StringVar(&f.tls.CAFile, "cafile", "", "use TLS and trust the authorities in this `file` (PEM) instead of the system's")
	fs.StringVar(&f.tls.CertFile, "cert", "", "use TLS and show the certificate in this `file` (PEM)")
	fs.StringVar(&f.tls.KeyFile, "key", "", "`file` with the key of --cert (PEM)")
	fs.BoolVar(&f.tls.Insecure, "insecure", false, "use TLS and trust any certificate")
	cmd.MarkFlagsRequiredTogether("cert", "key")
	cmd.MarkFlagsMutuallyExclusive("password", "password-file")
	durationVar(cmd, &f.timeout, "connect-timeout", 10*time.Second, "how long to wait for the broker's answers")
	_ = cmd.RegisterFlagCompletionFunc("mqtt", cobra.FixedCompletions([]string{"5", "3.1.1"}, cobra.ShellCompDirectiveNoFileComp))
}

// options checks the flags. Sessions start clean unless the caller says otherwise.
func (f *connectFlags) options(cmd *cobra.Command) (client.Options, error) {
	version, err := client.ParseVersion(f.mqtt)
	if err != nil {
		return client.Options{}, usageError("--mqtt: %w", err)
	}
	f.version = version
	url, err := f.broker(cmd)
	if err != nil {
		return client.Options{}, err
	}
	if err := f.readPassword(); err != nil {
		return client.Options{}, err
	}
	return client.Options{
		URL: url, ID: f.id, Version: version, CleanStart: true,
		User: f.username, Password: f.password, KeepAlive: f.keepAlive, Timeout: f.timeout, TLS: f.tls,
	}, nil
}

// passwordEnv has the password if no flag has: others on this machine do not see it, as they do a command's flags.
const passwordEnv = "EDGEMQ_PASSWORD"

// readPassword takes the password from --password-file, if that is given, or with a user's name from the environment.
func (f *connectFlags) readPassword() error {
	if f.passwordFile == "" {
		if f.username != "" && f.password == "" {
			f.password = os.Getenv(passwordEnv)
		}
		return nil
	}
	file, err := os.Open(f.passwordFile)
	if err != nil {
		return usageError("--password-file: %w", err)
	}
	defer file.Close()
	line, err := firstLine(file)
	if err != nil {
		return usageError("--password-file: %w", err)
	}
	f.password = string(line)
	return nil
}

// broker is the URL to connect to: given as such, or as host and port.
func (f *connectFlags) broker(cmd *cobra.Command) (string, error) {
	secure := f.tls != client.TLS{}
	if f.url == "" {
		scheme, port := "mqtt", f.port
		if secure {
			scheme = "mqtts"
			if !cmd.Flags().Changed("port") {
				port = 8883
			}
		}
		return scheme + "://" + net.JoinHostPort(f.host, strconv.Itoa(int(port))), nil
	}
	if cmd.Flags().Changed("host") || cmd.Flags().Changed("port") {
		return "", usageError("--url already says host and port: leave --host and --port out")
	}
	u, err := client.ParseURL(f.url)
	if err != nil {
		return "", usageError("--url: %w", err)
	}
	if secure && !client.Secure(u.Scheme) {
		return "", usageError("--cafile, --cert, --key and --insecure are for mqtts:// and wss://, not for %s://", u.Scheme)
	}
	return f.url, nil
}

// duration is a flag in the form of the settings: 1h30m, and days as in 7d.
type duration time.Duration

func durationVar(cmd *cobra.Command, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	cmd.Flags().Var((*duration)(p), name, usage)
}

// String implements pflag.Value.
func (d *duration) String() string {
	if *d == 0 {
		return "" // so that help shows no default
	}
	return config.FormatDuration(time.Duration(*d))
}

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	v, err := config.ParseDuration(s)
	if err == nil && v < 0 {
		err = errors.New("it is negative")
	}
	*d = duration(v)
	return err
}

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }

// forever is the session expiry that never comes.
const forever = math.MaxUint32

// parseExpiry reads a session or message expiry: a duration or never.
func parseExpiry(flag, s string) (uint32, error) {
	if s == "never" {
		return forever, nil
	}
	d, err := config.ParseDuration(s)
	if err != nil || d < 0 || d > (forever-1)*time.Second {
		return 0, usageError("--%s: %q is not a duration like 30s, 1h or 7d, nor never", flag, s)
	}
	if d > 0 && d < time.Second {
		return 0, usageError("--%s: %s is less than a second", flag, s)
	}
	return uint32(d / time.Second), nil
}
