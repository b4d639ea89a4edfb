package admit

// Recency orders the rows of a table, numbered from 1, by their last use. The
// zero value has none.
type Recency struct {
	at []place // a ring; 0 is between the newest and the oldest
}

type place struct{ older, newer int32 }

// Use makes i, one of them or the next number, the newest.
func (r *Recency) Use(i int32) {
	if int(i) < len(r.at) {
		if r.at[0].older == i {
			return
		}
		r.remove(i)
	} else {
		r.at = append(r.at, make([]place, int(i)+1-len(r.at))...)
	}
	newest := r.at[0].older
	r.at[i] = place{older: newest}
	r.at[newest].newer = i
	r.at[0].older = i
}

func (r *Recency) remove(i int32) {
	p := r.at[i]
	r.at[p.older].newer = p.newer
	r.at[p.newer].older = p.older
}

// Oldest is the row that was not used for longest; 0: there is none.
func (r *Recency) Oldest() int32 { return r.Newer(0) }

// Newer is the row that was used next after i; 0: i is the newest.
func (r *Recency) Newer(i int32) int32 {
	if len(r.at) == 0 {
		return 0
	}
	return r.at[i].newer
}
