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
	Out   string   `help:"File to write the page to." short:"o" default:"report.html" type:"dir" placeholder:"FILE"`
	SVG   string   `help:"Write each picture to this directory as well, as a file of its own." name:"svg" type:"dir" placeholder:"DIR"`
}

func (c *reportCmd) Help() string {
	return "The page needs nothing but itself: no network, no script. It follows the reader's choice of light or dark. There is a picture " +
		"for each thing that the files have data of."
}

// drawn is the result of a reportCmd.
type drawn struct {
	Page     string   `json:"page"`
	Reports  uint64   `json:"reports"`
	Pictures uint64   `json:"pictures"`
	Files    []string `json:"files,omitempty"` // with --svg
	bench.Outcome
}

func (c *reportCmd) Run(out *output) error {
	r := drawn{Page: c.Out}
	err := c.draw(&r)
	if err != nil {
		r.Error = err.Error()
	}
	if out.json {
		out.print(r)
		return err
	}
	if err == nil {
		say(out.stdout, "%s: %d pictures of %d reports\n", r.Page, r.Pictures, r.Reports)
	}
	for _, file := range r.Files {
		say(out.stdout, "%s\n", file)
	}
	return err
}

func (c *reportCmd) draw(r *drawn) error {
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
	figures := draw.Figures(runs)
	if r.Reports, r.Pictures = uint64(len(runs)), uint64(len(figures)); r.Pictures == 0 {
		return fmt.Errorf("%w: no data for a picture: give reports of claims, reopen or bench/peers", bench.ErrUsage)
	}
	var page bytes.Buffer
	if err := draw.Page(&page, runs); err != nil {
		return err
	}
	if err := os.WriteFile(c.Out, page.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the page: %w: give another file with --out", err)
	}
	if c.SVG == "" {
		return nil
	}
	return c.pictures(figures, r)
}

// pictures writes each figure to a file.
func (c *reportCmd) pictures(figures []draw.Figure, r *drawn) error {
	if err := os.MkdirAll(c.SVG, 0o755); err != nil {
		return fmt.Errorf("making the directory of the pictures: %w: give another one with --svg", err)
	}
	for _, f := range figures {
		path := filepath.Join(c.SVG, f.Name+".svg")
		if err := os.WriteFile(path, []byte(f.SVG()), 0o644); err != nil {
			return fmt.Errorf("writing a picture: %w: give another directory with --svg", err)
		}
		r.Files = append(r.Files, path)
	}
	return nil
}
