// Package pacereport writes the page of `replay --report`: what the schedule
// was and how the packets went, in one HTML file that needs nothing else.
package pacereport

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	"github.com/moldtape/moldtape/replay"
)

// Page is what is shown.
type Page struct {
	Sessions []string // that were replayed
	How      string   // paced and sent, in words
	Report   *replay.Report
}

// Write writes the page.
func Write(w io.Writer, p Page) error {
	r := p.Report
	paced := len(r.Lateness) > 0
	v := view{Page: p, Rate: ratePlot(r.Timeline, paced)}
	row := func(name, value string) { v.Rows = append(v.Rows, [2]string{name, value}) }
	row("packets, messages, bytes", fmt.Sprintf("%d, %d, %d", r.Packets, r.Messages, r.Bytes))
	row("from the first packet to the last", fmt.Sprintf("%.6f s; scheduled %.6f s", r.Elapsed, r.Scheduled))
	row("achieved", fmt.Sprintf("%.0f packets/s, %.0f messages/s", r.PacketRate, r.MessageRate))
	if paced {
		e := r.PacingError
		row("late", fmt.Sprintf("p50 %s, p99 %s, p99.9 %s, most %s", nice(e.P50), nice(e.P99), nice(e.P999), nice(e.Max)))
		row("drift over the run", nice(r.Drift))
		v.Late, v.Share = latePlot(r.Timeline), sharePlot(r.Lateness)
	}
	row("holes, failed sends, starved", fmt.Sprintf("%d, %d, %d", r.Holes, r.SendErrors, r.Starved))
	for _, b := range r.Busiest {
		v.Windows = append(v.Windows, [3]string{nice(b.Length), orDash(b.Scheduled, paced), fmt.Sprint(b.Sent)})
	}
	return page.Execute(w, v)
}

type view struct {
	Page
	Rows              [][2]string
	Windows           [][3]string
	Rate, Late, Share *plot
}

func orDash(n uint64, ok bool) string {
	if !ok {
		return "–"
	}
	return fmt.Sprint(n)
}

// nice is a number of seconds in words.
func nice(s float64) string {
	d := time.Duration(math.Round(s * 1e9))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d.Abs() >= unit {
			return d.Round(unit / 1000).String()
		}
	}
	return d.String()
}

// The area of a plot in its picture.
const (
	left, top     = 70, 10
	width, height = 820, 180
)

// plot is one picture: curves in an area with marks at its edges.
type plot struct {
	Curves []curve
	X, Y   []mark
}

type curve struct {
	Name, Class string
	Points      string // of an SVG polyline
}

type mark struct {
	At   float64
	Text string
}

// add adds a curve; x and y give a point's place in the area, 0..1.
func (p *plot) add(name, class string, n int, x, y func(i int) float64) {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%.1f,%.1f ", left+width*clamp(x(i)), top+height*(1-clamp(y(i))))
	}
	p.Curves = append(p.Curves, curve{name, class, strings.TrimSpace(b.String())})
}

func clamp(v float64) float64 { return min(max(v, 0), 1) }

// ratePlot shows packets a second, as scheduled and as sent.
func ratePlot(spans []replay.Span, paced bool) *plot {
	if len(spans) == 0 {
		return nil
	}
	per := func(n uint64, s replay.Span) float64 { return float64(n) / s.Length.Seconds() }
	most := 1.0
	for _, s := range spans {
		most = max(most, per(s.Scheduled, s), per(s.Sent, s))
	}
	p := new(plot)
	x := timeAxis(p, spans)
	if paced {
		p.add("scheduled", "a", len(spans), x, func(i int) float64 { return per(spans[i].Scheduled, spans[i]) / most })
	}
	p.add("sent", "b", len(spans), x, func(i int) float64 { return per(spans[i].Sent, spans[i]) / most })
	for _, part := range []float64{0, 0.5, 1} {
		p.Y = append(p.Y, mark{top + height*(1-part), perSecond(most * part)})
	}
	return p
}

func perSecond(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.3gM/s", n/1e6)
	case n >= 1000:
		return fmt.Sprintf("%.3gk/s", n/1000)
	}
	return fmt.Sprintf("%.3g/s", n)
}

// timeAxis marks the time and gives the place of a span.
func timeAxis(p *plot, spans []replay.Span) func(i int) float64 {
	last := spans[len(spans)-1]
	end := last.From + last.Length
	for _, part := range []float64{0, 0.25, 0.5, 0.75, 1} {
		p.X = append(p.X, mark{left + width*part, nice(end.Seconds() * part)})
	}
	return func(i int) float64 { return float64(spans[i].From+spans[i].Length/2) / float64(end) }
}

// Lateness is shown on a logarithmic scale, from 100 ns to 1000 s.
const (
	lowest  = -7
	decades = 10
)

func decade(seconds float64) float64 {
	return (math.Log10(max(seconds, 1e-12)) - lowest) / decades
}

// latePlot shows the mean and the worst lateness over time.
func latePlot(spans []replay.Span) *plot {
	p := new(plot)
	var due []replay.Span
	for _, s := range spans {
		if s.Scheduled > 0 {
			due = append(due, s)
		}
	}
	if len(due) == 0 {
		return nil
	}
	timeAxis(p, spans)
	end := float64(spans[len(spans)-1].From + spans[0].Length)
	x := func(i int) float64 { return float64(due[i].From+due[i].Length/2) / end }
	p.add("worst", "a", len(due), x, func(i int) float64 { return decade(due[i].Max.Seconds()) })
	p.add("mean", "b", len(due), x, func(i int) float64 { return decade(due[i].Mean.Seconds()) })
	for d := 0; d <= decades; d += 2 {
		p.Y = append(p.Y, mark{top + height*(1-float64(d)/decades), nice(math.Pow10(d + lowest))})
	}
	return p
}

// sharePlot shows which part of the packets went later than what.
func sharePlot(shares []replay.Share) *plot {
	total := float64(shares[len(shares)-1].Packets)
	if total == 0 {
		return nil
	}
	p := new(plot)
	const parts = 6 // decades of the part that is later
	p.add("part of the packets later than", "b", len(shares), func(i int) float64 { return decade(shares[i].Most.Seconds()) }, func(i int) float64 {
		return (math.Log10(max(1-float64(shares[i].Packets)/total, 1e-9)) + parts) / parts
	})
	for d := 0; d <= decades; d += 2 {
		p.X = append(p.X, mark{left + width*float64(d)/decades, nice(math.Pow10(d + lowest))})
	}
	for d := 0; d <= parts; d += 2 {
		p.Y = append(p.Y, mark{top + height*(1-float64(d)/parts), fmt.Sprintf("%g", math.Pow10(d-parts))})
	}
	return p
}

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>replay</title>
<style>
body{font:14px sans-serif;margin:2em;max-width:920px;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:2px 12px 2px 0;text-align:left}
svg{display:block}text{font:11px sans-serif;fill:#555}
rect{fill:#fafafa;stroke:#ccc}.grid{stroke:#e4e4e4}
polyline{fill:none;stroke-width:1.2}.a{stroke:#d97706}.b{stroke:#2563eb}
span.a{color:#d97706}span.b{color:#2563eb}
</style></head><body>
<h1>replay</h1>
<p>{{range $i, $s := .Sessions}}{{if $i}}, {{end}}{{$s}}{{end}}: {{.How}}</p>
<table>{{range .Rows}}<tr><td>{{index . 0}}</td><td>{{index . 1}}</td></tr>
{{end}}</table>
<h2>Busiest windows</h2>
<table><tr><th>window</th><th>packets scheduled</th><th>packets sent</th></tr>
{{range .Windows}}<tr><td>{{index . 0}}</td><td>{{index . 1}}</td><td>{{index . 2}}</td></tr>
{{end}}</table>
{{with .Rate}}<h2>Packets a second</h2>{{template "plot" .}}{{end}}
{{with .Late}}<h2>Lateness over time</h2>{{template "plot" .}}{{end}}
{{with .Share}}<h2>How late</h2>{{template "plot" .}}{{end}}
</body></html>
{{define "plot"}}<p>{{range .Curves}}<span class="{{.Class}}">— {{.Name}}</span> {{end}}</p>
<svg width="920" height="215" viewBox="0 0 920 215"><rect x="70" y="10" width="820" height="180"/>
{{range .Y}}<line class="grid" x1="70" x2="890" y1="{{.At}}" y2="{{.At}}"/><text x="64" y="{{.At}}" text-anchor="end" dominant-baseline="middle">{{.Text}}</text>
{{end}}{{range .X}}<text x="{{.At}}" y="206" text-anchor="middle">{{.Text}}</text>
{{end}}{{range .Curves}}<polyline class="{{.Class}}" points="{{.Points}}"/>
{{end}}</svg>{{end}}
`))
