// Package report draws the JSON of the commands: a page of HTML that needs nothing but itself, and
// single pictures in SVG. Both follow the reader's choice of light or dark.
//
// Read takes the JSON, Figures makes the pictures for which it has data, and Page writes the page.
// Nothing is drawn that is not in the JSON.
package report
