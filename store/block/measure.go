package block

// measured is how many bytes of rows a measurement looks at.
const measured = 64 << 10

// Measure is about what p makes of b, from a sample: stored bytes a byte of
// rows, and the share of these in messages of shapes that p knows. Without rows
// both are 0. e must be of level Dense; its History is left as it is.
func (e *Encoder) Measure(p *Plans, b *Block) (ratio, known float64) {
	c := e.col
	end := 0
	hits := 0
	for end < len(b.rows) && end < measured {
		n := frame(b.rows, end)
		if n > 2 && n-2 <= maxRow {
			if _, ok := p.at[shapeOf((n-2)<<8)|shapeOf(b.rows[end+2])]; ok {
				hits += n
			}
		}
		end += n
	}
	if end == 0 {
		return 0, 0
	}
	out, ok := c.split.encode(c.zipped[:0], b.rows[:end], p, e.z, false, false)
	c.zipped = out
	if !ok {
		return 1, 0
	}
	return float64(len(out)) / float64(end), float64(hits) / float64(end)
}
