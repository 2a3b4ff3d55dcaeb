// What follows from weights and a head's space: effective attention, norm shares, intervals and verdicts.
// Effective attention (Brunner et al. 2020, Eq. 9): each row projected on the columns of T; for maps without a mask.
function effectiveOf(raw, space, queries, keys) {
  if (space.whole) return raw;
  const { basis, rank } = space, gram = new Float64Array(rank * rank), found = new Float32Array(raw.length), y = new Float64Array(rank);
  for (let key = 0; key < keys; key += 1) {
    for (let i = 0; i < rank; i += 1) {
      const value = basis[key * rank + i];
      if (value) for (let j = 0; j <= i; j += 1) gram[i * rank + j] += value * basis[key * rank + j];
    }
  }
  for (let i = 0; i < rank; i += 1) {
    for (let j = 0; j <= i; j += 1) {
      let sum = gram[i * rank + j];
      for (let k = 0; k < j; k += 1) sum -= gram[i * rank + k] * gram[j * rank + k];
      gram[i * rank + j] = i === j ? Math.sqrt(sum) : sum / gram[j * rank + j];
    }
  }
  for (let query = 0; query < queries; query += 1) {
    y.fill(0);
    for (let key = 0; key < keys; key += 1) {
      const weight = raw[query * keys + key];
      for (let i = 0; i < rank; i += 1) y[i] += weight * basis[key * rank + i];
    }
    for (let i = 0; i < rank; i += 1) {
      for (let j = 0; j < i; j += 1) y[i] -= gram[i * rank + j] * y[j];
      y[i] /= gram[i * rank + i];
    }
    for (let i = rank - 1; i >= 0; i -= 1) {
      for (let j = i + 1; j < rank; j += 1) y[i] -= gram[j * rank + i] * y[j];
      y[i] /= gram[i * rank + i];
    }
    for (let key = 0; key < keys; key += 1) {
      let sum = 0;
      for (let i = 0; i < rank; i += 1) sum += basis[key * rank + i] * y[i];
      found[query * keys + key] = sum;
    }
  }
  return found;
}

// Norm share ‖a_ij t_j‖ / Σ_k ‖a_ik t_k‖ (Kobayashi et al. 2020).
function normShares(raw, { norms }, queries, keys) {
  const found = new Float32Array(raw.length);
  for (let query = 0; query < queries; query += 1) {
    let sum = 0;
    for (let key = 0; key < keys; key += 1) sum += found[query * keys + key] = raw[query * keys + key] * norms[key];
    for (let key = 0; key < keys; key += 1) found[query * keys + key] /= sum || 1;
  }
  return found;
}

// The linear programs of one row: min and max of a'_j over {a' >= 0, a' [T, 1] = a [T, 1]}, by the simplex method.
class RowIntervals {
  constructor(row, space, query) {
    const keys = row.length, all = [...Array(keys).keys()];
    this.row = row;
    this.seen = space.visible ? all.filter((key) => space.visible[query * keys + key]) : all;
    this.inside = Float64Array.from(this.seen, (key) => row[key]);
    const left = 1 - this.inside.reduce((sum, weight) => sum + weight, 0);
    // A learnt sink takes part as one more key, of value zero.
    this.sink = left > 0.01;
    if (this.sink) this.inside = Float64Array.from([...this.inside, left]);
    this.size = this.inside.length;
    this.kept = space.whole ? null : this.directions(space);
    this.fixed = !this.kept || this.kept.length >= this.size;
    if (!this.fixed) this.start();
  }

  // Orthonormal functions of the row that no alternative changes: the columns of T on the keys seen, and the sum.
  directions({ basis, rank }) {
    const found = [];
    for (let column = 0; column <= rank; column += 1) {
      const one = Float64Array.from({ length: this.size }, (_, at) => (column === rank ? 1 : at < this.seen.length ? basis[this.seen[at] * rank + column] : 0));
      const before = Math.hypot(...one);
      for (let pass = 0; pass < 2; pass += 1) {
        for (const other of found) {
          let dot = 0;
          for (let at = 0; at < this.size; at += 1) dot += one[at] * other[at];
          for (let at = 0; at < this.size; at += 1) one[at] -= dot * other[at];
        }
      }
      const after = Math.hypot(...one);
      if (after > 2e-3 * before) found.push(one.map((value) => value / after));
    }
    return found;
  }

  // A first vertex: artificial variables are driven out of the basis.
  start() {
    const width = this.size + 1;
    this.table = this.kept.map((direction) => {
      const line = new Float64Array(width);
      line.set(direction);
      for (let at = 0; at < this.size; at += 1) line[this.size] += direction[at] * this.inside[at];
      return line[this.size] < 0 ? line.map((value) => -value) : line;
    });
    this.base = this.table.map(() => -1);
    for (let step = 0; step < 50 * width && this.base.includes(-1); step += 1) {
      const gain = new Float64Array(this.size);
      this.base.forEach((one, line) => { if (one < 0) for (let at = 0; at < this.size; at += 1) gain[at] += this.table[line][at]; });
      const enter = this.largest(gain, 1e-10);
      if (enter < 0) break;
      this.pivot(this.leaving(enter), enter);
    }
    for (let line = this.table.length - 1; line >= 0; line -= 1) {
      if (this.base[line] >= 0) continue;
      const enter = this.largest(this.table[line].subarray(0, this.size).map(Math.abs), 1e-7);
      if (enter >= 0) this.pivot(line, enter);
      else { this.table.splice(line, 1); this.base.splice(line, 1); }
    }
  }

  largest(gain, least) {
    let best = -1, most = least;
    for (let at = 0; at < this.size; at += 1) if (gain[at] > most) { most = gain[at]; best = at; }
    return best;
  }

  leaving(enter) {
    let best = -1, least = Infinity, size = 0;
    this.table.forEach((line, at) => {
      if (line[enter] < 1e-9) return;
      const ratio = Math.max(0, line[this.size]) / line[enter];
      if (ratio < least - 1e-12 || (ratio < least + 1e-12 && line[enter] > size)) { least = ratio; best = at; size = line[enter]; }
    });
    return best;
  }

  pivot(leave, enter) {
    const { size, table } = this, line = table[leave], by = 1 / line[enter];
    for (let at = 0; at <= size; at += 1) line[at] *= by;
    for (let other = 0; other < table.length; other += 1) {
      const factor = table[other][enter];
      if (other === leave || factor === 0) continue;
      const changed = table[other];
      for (let at = 0; at <= size; at += 1) changed[at] -= factor * line[at];
    }
    this.base[leave] = enter;
  }

  // The least (sign −1) or greatest (sign 1) value of one weight, given by its place among those seen.
  end(place, sign) {
    for (let step = 0; step < 20 * this.size; step += 1) {
      const line = this.base.indexOf(place);
      let enter = place;
      if (line < 0 && sign < 0) return 0;
      if (line >= 0) enter = this.largest(this.table[line].subarray(0, this.size).map((value, at) => (at === place ? 0 : -sign * value)), 1e-9);
      if (enter < 0) return this.table[line][this.size];
      const leave = this.leaving(enter);
      if (leave < 0) break;
      this.pivot(leave, enter);
    }
    return NaN;
  }

  // The alternative that the last program ended at, by key.
  vertex() {
    const found = Float64Array.from(this.row);
    this.seen.forEach((key) => (found[key] = 0));
    this.base.forEach((place, line) => { if (place < this.seen.length) found[this.seen[place]] = this.table[line][this.size]; });
    return found;
  }

  lower(key) {
    const place = this.seen.indexOf(key);
    if (place < 0) return 0;
    return this.fixed ? this.inside[place] : Math.min(this.inside[place], Math.max(0, this.end(place, -1)));
  }

  upper(key) {
    const place = this.seen.indexOf(key);
    if (place < 0) return 0;
    return this.fixed ? this.inside[place] : Math.max(this.inside[place], this.end(place, 1));
  }
}

// Ends worked out from rounded data agree with proven ones to 0.003, shares to a few per cent: what lies nearer to a boundary is not called.
const END_MARGIN = 0.01, SHARE_MARGIN = 0.1;

// The verdict that all numbers near these have in common; null if they have none.
function verdictAbout(weight, lo, hi, share, seen, rules) {
  const near = [-1, 1].flatMap((down) => [-1, 1].flatMap((up) => [-1, 1].map((by) => verdictOf(weight, lo + down * END_MARGIN, hi + up * END_MARGIN, share * (1 + by * SHARE_MARGIN), seen, rules))));
  return new Set(near).size === 1 ? near[0] : null;
}

// The place of a weight's verdict among those of the rules; `seen` keys are visible.
function verdictOf(weight, lo, hi, share, seen, { within, even, floor }) {
  const least = 1 / seen, little = share < even * least * (1 - 1e-9);
  if (little && hi < floor * least) return 4;
  return 2 * (lo < (1 - within) * weight || hi > (1 + within) * weight) + little;
}
