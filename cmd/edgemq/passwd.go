package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgemq/edgemq/broker/auth"
)

func passwdCommand() *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "passwd FILE USER",
		Short: "Set a user's password in a users file, or delete a user",
		Long: `Set a user's password in a users file (auth.users_file), which is made if there is none, or delete a user.
The password is read from the terminal, twice, or else from the first line of standard input. A broker that runs
reads the file again at SIGHUP.`,
		Example: `  edgemq passwd /etc/edgemq/users ann
  head -c 18 /dev/urandom | base64 | tee meter-7.secret | edgemq passwd users meter-7
  edgemq passwd -D /etc/edgemq/users ann`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, user := args[0], args[1]
			if remove {
				return auth.DeleteUser(file, user)
			}
			if err := auth.CheckUser(user); err != nil { // before the password is typed
				return &exitError{exitUsage, err}
			}
			password, err := readPassword(cmd.InOrStdin(), cmd.ErrOrStderr(), user)
			if err != nil {
				return err
			}
			return auth.SetPassword(file, user, password)
		},
	}
	cmd.Flags().BoolVarP(&remove, "delete", "D", false, "delete the user")
	return cmd
}

// readPassword asks for a password, or takes the first line where there is nobody to ask.
func readPassword(in io.Reader, out io.Writer, user string) ([]byte, error) {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		var typed [2][]byte
		for i, prompt := range []string{"Password for " + user + ": ", "Again: "} {
			fmt.Fprint(out, prompt)
			var err error
			typed[i], err = term.ReadPassword(int(f.Fd()))
			fmt.Fprintln(out)
			if err != nil {
				return nil, fmt.Errorf("read the password: %w", err)
			}
		}
		if !bytes.Equal(typed[0], typed[1]) {
			return nil, errors.New("the two are not the same; nothing was changed")
		}
		return typed[0], nil
	}
	return firstLine(in)
}

// firstLine reads a password.
func firstLine(in io.Reader) ([]byte, error) {
	line, err := bufio.NewReader(in).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the password: %w", err)
	}
	return bytes.TrimRight(line, "\r\n"), nil
}
