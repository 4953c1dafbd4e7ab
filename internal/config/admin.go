package config

import (
	"fmt"
	"path/filepath"

	"github.com/edgemq/edgemq/broker/admin"
)

// Off is the word that turns an address off.
const Off = "off"

// Admin says where tools and people reach the broker.
type Admin struct {
	Listen string
	Socket string
	Token  string
}

// checkAdmin accepts an address, or off.
func checkAdmin(s string) error {
	if s == Off {
		return nil
	}
	return checkAddress(s)
}

// admin is the settings of the API as the broker takes them.
func (c *Config) admin() admin.Options {
	o := admin.Options{Token: c.Admin.Token, Socket: c.AdminSocket()}
	if c.Admin.Listen != Off {
		o.Listen = c.Admin.Listen
	}
	return o
}

// AdminSocket returns the path of the API's socket, "" if it has none.
func (c *Config) AdminSocket() string {
	switch s := c.Admin.Socket; {
	case s == Off:
		return ""
	case filepath.IsAbs(s):
		return s
	default:
		return filepath.Join(c.Data, s)
	}
}

// adminToken checks that an API that other machines can reach asks for a token.
func (l *loader) adminToken(c *Config) {
	if c.Admin.Listen != Off && !loopback(c.Admin.Listen) && c.Admin.Token == "" {
		l.problem("admin.listen", "admin.listen", fmt.Sprintf("%s can be reached from other machines, and anybody there could delete queues: "+
			"set admin.token, or listen on 127.0.0.1", c.Admin.Listen))
	}
}
