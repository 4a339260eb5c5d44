package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width    = 17 * vg.Centimeter
	typeface = "Liberation" // the one that gonum measures text with
)

// colors are told apart by most people who do not see all colors (Okabe and Ito).
var colors = []color.RGBA{
	{0x00, 0x72, 0xb2, 255}, {0xe6, 0x9f, 0x00, 255}, {0x00, 0x9e, 0x73, 255},
	{0xcc, 0x79, 0xa7, 255}, {0xd5, 0x5e, 0x00, 255}, {0x56, 0xb4, 0xe9, 255},
}

// A series is a name and its values: for bars one for each system, for lines one for each size.
type series struct {
	name   string
	sizes  []int64 // of lines
	values []float64
}

func newPlot(title string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: typeface, Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = 12
	p.Title.Padding = 8
	p.BackgroundColor = color.White // on a dark page, too
	return p
}

// bars draws a group of horizontal bars for each system, the first at the top, and writes the value at each bar's end.
func bars(title, unit string, systems []string, all []series) ([]byte, error) {
	p := newPlot(title)
	p.X.Label.Text = unit
	p.X.Min = 0
	p.X.Tick.Marker = grouped{}
	names := plot.NewLegend()
	thick := vg.Points(28 / float64(len(all)))
	if len(all) == 1 {
		thick = 12
	}
	most := 0.0
	for i, s := range all {
		down := make(plotter.Values, len(s.values))
		ends := plotter.XYLabels{}
		offset := vg.Length(len(all)-1-2*i) / 2 * thick
		for j, v := range s.values {
			k := len(s.values) - 1 - j
			down[k] = v
			most = max(most, v)
			if v > 0 {
				ends.XYs = append(ends.XYs, plotter.XY{X: v, Y: float64(k)})
				ends.Labels = append(ends.Labels, number(v))
			}
		}
		b, err := plotter.NewBarChart(down, thick*0.9)
		if err != nil {
			return nil, err
		}
		b.Horizontal, b.Color, b.LineStyle.Width, b.Offset = true, colors[i], 0, offset
		labels, err := plotter.NewLabels(ends)
		if err != nil {
			return nil, err
		}
		for j := range labels.TextStyle {
			labels.TextStyle[j].Font.Size = 8
			labels.TextStyle[j].YAlign = draw.YCenter
		}
		labels.Offset = vg.Point{X: 3, Y: offset}
		p.Add(b, labels)
		if len(all) > 1 {
			names.Add(s.name, b)
		}
	}
	p.X.Max = most * 1.1
	rows := make([]string, len(systems))
	for i, s := range systems {
		rows[len(systems)-1-i] = s + "\u00a0\u00a0" // room for a font that is wider than the one measured with
	}
	p.NominalY(rows...)
	return svg(p, &names, vg.Length(len(systems))*(thick*vg.Length(len(all))+9)+70)
}

// lines draws each series over sizes, both axes in powers.
func lines(title, unit string, all []series) ([]byte, error) {
	p := newPlot(title)
	p.Y.Label.Text = unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = bytesTicks{}, decades{}
	p.Add(plotter.NewGrid())
	names := plot.NewLegend()
	for i, s := range all {
		xy := make(plotter.XYs, len(s.values))
		for j, v := range s.values {
			xy[j] = plotter.XY{X: float64(s.sizes[j]), Y: v}
		}
		l, points, err := plotter.NewLinePoints(xy)
		if err != nil {
			return nil, err
		}
		l.Color, l.Width = colors[i], 1.5
		points.Color, points.Shape, points.Radius = colors[i], shape(i), 2.5
		p.Add(l, points)
		names.Add(s.name, l, points)
	}
	return svg(p, &names, 10*vg.Centimeter)
}

func shape(i int) draw.GlyphDrawer {
	return []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}}[i]
}

// svg draws p, and the names of its series below it, where they hide nothing. The font is named with others that stand in for it.
func svg(p *plot.Plot, names *plot.Legend, height vg.Length) ([]byte, error) {
	names.Padding, names.Left, names.XOffs = 2, true, 3*vg.Centimeter
	below := names.Rectangle(draw.New(vgsvg.New(width, height))).Size().Y
	c := vgsvg.New(width, height+below)
	all := draw.New(c)
	p.Draw(draw.Crop(all, 12, -24, 4+below, -4))
	names.Draw(draw.Crop(all, 12, -24, 4, -height))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(b.Bytes(), []byte(typeface+" Sans"), []byte(typeface+" Sans,Arial,Helvetica,sans-serif")), nil
}

// number writes v with at most three digits that count.
func number(v float64) string {
	switch {
	case v < 0.095:
		return fmt.Sprintf("%.3f", v)
	case v < 0.95:
		return fmt.Sprintf("%.2f", v)
	case v < 9.95:
		return fmt.Sprintf("%.1f", v)
	case v < 999.5:
		return fmt.Sprintf("%.0f", v)
	}
	n := math.Pow(10, math.Floor(math.Log10(v))-2)
	return thousands(int64(math.Round(v/n) * n))
}

func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// grouped are the default ticks, with commas.
type grouped struct{}

func (grouped) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = thousands(int64(t.Value))
		}
	}
	return ticks
}

// bytesTicks name every fourth power of two.
type bytesTicks struct{}

func (bytesTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	for n := 0; n < 62; n++ {
		v := float64(int64(1) << n)
		if v < low || v > high {
			continue
		}
		t := plot.Tick{Value: v}
		if n%4 == 0 {
			t.Label = sizeName(int64(v))
		}
		ticks = append(ticks, t)
	}
	return ticks
}

func sizeName(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprint(n>>20, " MiB")
	case n >= 1<<10:
		return fmt.Sprint(n>>10, " KiB")
	}
	return fmt.Sprint(n, " B")
}

// decades are the powers of ten, with ticks between.
type decades struct{}

func (decades) Ticks(low, high float64) (ticks []plot.Tick) {
	for v := math.Pow(10, math.Floor(math.Log10(low))); v <= high; v *= 10 {
		for n := 1.0; n < 10; n++ {
			if x := n * v; x >= low && x <= high {
				t := plot.Tick{Value: x}
				if n == 1 || n == 2 || n == 5 {
					t.Label = number(x)
				}
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}
