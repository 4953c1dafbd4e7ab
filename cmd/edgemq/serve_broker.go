package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/edgemq/edgemq/internal/config"
)

func serve(context.Context, *config.Config, *slog.Logger) error {
	return errors.New("the broker has not landed yet")
}
