package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hapax-dev/hapax/bench"
	draw "github.com/hapax-dev/hapax/bench/report"
)

type reportCmd struct {
	Files []string `arg:"" help:"Files with the output of commands that were run with --json, or of bench/peers." type:"path"`
	Out   string   `help:"File to write the page to." short:"o" default:"report.html" type:"path" placeholder:"FILE"`
	SVG   string   `help:"Write each picture to this directory as well, as a file of its own." name:"svg" type:"path" placeholder:"DIR"`
}

func (c *reportCmd) Help() string {
	return "The page needs nothing but itself: no network, no script. It follows the reader's choice of light or dark. There is a picture " +
		"for each thing that the files have data of."
}

func (c *reportCmd) Run(out *output) error {
	var runs []draw.Run
	for _, path := range c.Files {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("%w: %w", bench.ErrUsage, err)
		}
		more, err := draw.Read(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%w: %s: %w", bench.ErrUsage, path, err)
		}
		runs = append(runs, more...)
	}
	var page bytes.Buffer
	if err := draw.Page(&page, runs); err != nil {
		return err
	}
	if err := os.WriteFile(c.Out, page.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	say(out.stdout, "%s: %d pictures of %d reports\n", c.Out, len(draw.Figures(runs)), len(runs))
	if c.SVG == "" {
		return nil
	}
	return c.pictures(draw.Figures(runs), out)
}

// pictures writes each figure to a file.
func (c *reportCmd) pictures(figures []draw.Figure, out *output) error {
	if err := os.MkdirAll(c.SVG, 0o755); err != nil {
		return err
	}
	for _, f := range figures {
		path := filepath.Join(c.SVG, f.Name+".svg")
		if err := os.WriteFile(path, []byte(f.SVG()), 0o644); err != nil {
			return fmt.Errorf("writing a picture: %w", err)
		}
		say(out.stdout, "%s\n", path)
	}
	return nil
}
