package store

import (
	"errors"
	"slices"

	"github.com/moldtape/moldtape/moldcast"
)

// snapshots reads every snapshot of a recording, and compares what there is
// with the audit log.
func (v *verification) snapshots(c *checked) error {
	a := v.a
	found, err := v.readSnapshots(c, nil)
	if err != nil {
		return err
	}
	entries := v.audit
	if _, _, odd := oddSnapshots(found, snapshotRecords(entries, c.ref)); odd {
		// One may have been stored, or removed, since the log was read.
		lock, err := a.lockAudit()
		if err != nil {
			return err
		}
		defer lock.Close()
		if entries, _, err = a.AuditLog(); err != nil && !errors.As(err, new(*AuditError)) {
			return err
		}
		if found, err = v.readSnapshots(c, found); err != nil {
			return err
		}
	}
	recs := snapshotRecords(entries, c.ref)
	var end moldcast.Seq
	ended := false
	if len(found) > 0 {
		if end, ended, err = a.EndOf(c.ref); err != nil {
			ended = false // what cannot be read is named elsewhere
		}
	}
	for _, f := range found {
		v.rep.Snapshots++
		v.rep.SnapshotBytes += f.info.Bytes
		if f.err == nil {
			if ended && f.info.Seq > end {
				v.fault(c, "", moldcast.Range{}, "%s/%s (snapshot at %d): %s", snapshotDir, snapshotName(f.info.Seq), f.info.Seq, beyondEnd(f.info.Seq, end))
			}
			continue
		}
		why := f.err
		if bad := (*SnapshotError)(nil); errors.As(f.err, &bad) {
			why = bad.Err
		}
		v.fault(c, "", moldcast.Range{}, "%s/%s (snapshot at %d): %v; `moldtape repair --from` restores it from another archive", snapshotDir, snapshotName(f.info.Seq), f.info.Seq, why)
	}
	missing, doubts, _ := oddSnapshots(found, recs)
	for _, q := range missing {
		v.fault(c, "", moldcast.Range{}, "%s/%s (snapshot at %d): it is missing; by the audit log it was stored, of SHA-256 %s; `moldtape repair --from` restores it from another archive", snapshotDir, snapshotName(q), q, short(recs[q].sum))
	}
	for _, d := range doubts {
		switch rec := recs[d.info.Seq]; {
		case rec.sum == "" || rec.removed:
			why := "the audit log does not know it: a crash kept it from being put on record; the next prune does"
			if rec.removed {
				why = "by the audit log it was removed: a crash kept it from that; the next prune does"
			}
			v.rep.Notes = append(v.rep.Notes, Fault{Session: c.ref.String(), Problem: snapshotDir + "/" + snapshotName(d.info.Seq) + ": " + why})
		default:
			v.fault(c, "", moldcast.Range{}, "%s/%s (snapshot at %d): it is not what was stored: SHA-256 %s, by the audit log %s", snapshotDir, snapshotName(d.info.Seq), d.info.Seq, short(d.info.Sum), short(rec.sum))
		}
	}
	return nil
}

// readSnapshots reads those that are there; what is in known already is not read
// again.
func (v *verification) readSnapshots(c *checked, known []foundSnapshot) ([]foundSnapshot, error) {
	seqs, err := v.a.snapshotSeqs(c.ref)
	if err != nil {
		return nil, err
	}
	var out []foundSnapshot
	for _, q := range seqs {
		if i := slices.IndexFunc(known, func(f foundSnapshot) bool { return f.info.Seq == q && f.err == nil }); i >= 0 {
			out = append(out, known[i])
			continue
		}
		f := v.a.checkSnapshot(c.ref, v.a.o.FS.PathJoin(c.s.dir, snapshotDir), q)
		if !isNotExist(f.err) {
			out = append(out, f)
		}
	}
	return out, nil
}

// oddSnapshots are those of which the audit log says something else: missing
// ones, and what is there and sound, but not as it was stored.
func oddSnapshots(found []foundSnapshot, recs map[moldcast.Seq]snapshotRecord) (missing []moldcast.Seq, doubts []foundSnapshot, odd bool) {
	there := map[moldcast.Seq]bool{}
	for _, f := range found {
		there[f.info.Seq] = true
		if rec := recs[f.info.Seq]; f.err == nil && (rec.removed || rec.sum != f.info.Sum) {
			doubts = append(doubts, f)
		}
	}
	for q, rec := range recs {
		if !rec.removed && !there[q] {
			missing = append(missing, q)
		}
	}
	slices.Sort(missing)
	return missing, doubts, len(missing)+len(doubts) > 0
}
