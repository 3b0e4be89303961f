// Package report draws the JSON output of the commands as a self-contained HTML page, or as SVG
// pictures. Both support light and dark colour schemes.
//
// Read parses the JSON, Figures draws the pictures for which there are data, and Page writes the
// page. Everything drawn comes from the JSON.
package report
