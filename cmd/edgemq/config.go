package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/config"
)

// settingFlags are the flags that change settings; they win over the environment and the file.
type settingFlags struct {
	file string
	set  []string
}

func (f *settingFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "config", "c", "", "settings `file` (YAML); default: $"+config.EnvFile+", else none")
	f.addSet(cmd)
}

func (f *settingFlags) addSet(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.set, "set", nil, "a setting, as `key=value`; repeatable")
}

func (f *settingFlags) load(more ...config.Setting) (*config.Config, error) {
	return f.read(config.Source{Set: more})
}

// loadAll is load for a broker that is to run with the settings: the files that they name are looked at, too.
func (f *settingFlags) loadAll(more ...config.Setting) (*config.Config, error) {
	return f.read(config.Source{Set: more, Files: true})
}

func (f *settingFlags) read(src config.Source) (*config.Config, error) {
	more := src.Set
	src.File, src.Set = f.file, nil
	if src.File == "" {
		src.File = os.Getenv(config.EnvFile)
	}
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usageError("--set: %q is not key=value", s)
		}
		src.Set = append(src.Set, config.Setting{Key: key, Value: value, Origin: "--set " + s})
	}
	src.Set = append(src.Set, more...)
	c, err := config.Load(src)
	if err == nil {
		return c, nil
	}
	if e, ok := config.AsError(err); ok && len(e.Problems) > 1 {
		return nil, &exitError{exitUsage, fmt.Errorf("the settings are not possible:\n%w", err)}
	}
	return nil, &exitError{exitUsage, err}
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and print settings",
	}
	cmd.AddCommand(configCheckCommand(), configPrintCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	var f settingFlags
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a settings file together with the environment, without starting anything",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if f.file != "" {
					return usageError("the file is given twice: %s and --config %s", args[0], f.file)
				}
				f.file = args[0]
			}
			if _, err := f.loadAll(); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	f.add(cmd)
	return cmd
}

func configPrintCommand() *cobra.Command {
	var (
		f    settingFlags
		docs bool
	)
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the settings in force, as a settings file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load()
			if err != nil {
				return err
			}
			return c.Write(cmd.OutOrStdout(), docs)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&docs, "docs", false, "with the documentation of each key")
	return cmd
}
