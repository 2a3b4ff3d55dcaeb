// Numbers of maps as they travel (charts/packing.py): base64, deflate, lower eight bits of every code before the rest.
const BASIS_BITS = 12, MISSING = 2 ** 10 - 1;

function bytesOf(text) {
  return Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (mark) => mark.charCodeAt(0));
}

async function inflated(text) {
  const bytes = bytesOf(text);
  if (typeof DecompressionStream === "undefined") return inflatedByHand(bytes);
  const opened = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(opened).arrayBuffer());
}

// Inflates without help of the browser (RFC 1951).
function inflatedByHand(bytes) {
  const out = [], LENGTHS = [], FAR = [];
  for (let at = 0, base = 3; at < 28; at += 1) { const more = at < 8 ? 0 : (at - 4) >> 2; LENGTHS.push([base, more]); base += 1 << more; }
  LENGTHS.push([258, 0]);
  for (let at = 0, base = 1; at < 30; at += 1) { const more = at < 4 ? 0 : (at - 2) >> 1; FAR.push([base, more]); base += 1 << more; }
  let place = 0, held = 0, count = 0;
  const bits = (wanted) => {
    while (count < wanted) { held |= bytes[place++] << count; count += 8; }
    const value = held & ((1 << wanted) - 1);
    held >>>= wanted; count -= wanted;
    return value;
  };
  // A code table: for each length how many codes, and the symbols in order.
  const table = (sizes) => {
    const counts = new Array(16).fill(0), starts = [0, 0], symbols = [];
    sizes.forEach((size) => (counts[size] += 1));
    counts[0] = 0;
    for (let size = 1; size < 15; size += 1) starts[size + 1] = starts[size] + counts[size];
    sizes.forEach((size, symbol) => { if (size) symbols[starts[size]++] = symbol; });
    return { counts, symbols };
  };
  const symbol = ({ counts, symbols }) => {
    for (let size = 1, code = 0, first = 0, index = 0; size < 16; size += 1) {
      code |= bits(1);
      if (code - counts[size] < first) return symbols[index + code - first];
      index += counts[size]; first = (first + counts[size]) << 1; code <<= 1;
    }
    throw new Error("a map is damaged");
  };
  const fixed = [table([...Array(288).keys()].map((at) => (at < 144 ? 8 : at < 256 ? 9 : at < 280 ? 7 : 8))), table(Array(30).fill(5))];
  const own = () => {
    const many = bits(5) + 257, far = bits(5) + 1, some = bits(4) + 4, sizes = Array(19).fill(0);
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15].slice(0, some).forEach((at) => (sizes[at] = bits(3)));
    const codes = table(sizes), found = [];
    while (found.length < many + far) {
      const one = symbol(codes);
      if (one < 16) found.push(one);
      else {
        const times = one === 16 ? 3 + bits(2) : one === 17 ? 3 + bits(3) : 11 + bits(7), again = one === 16 ? found[found.length - 1] : 0;
        for (let at = 0; at < times; at += 1) found.push(again);
      }
    }
    return [table(found.slice(0, many)), table(found.slice(many))];
  };
  for (let last = 0; !last;) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      held = count = 0;
      const size = bytes[place] | (bytes[place + 1] << 8);
      place += 4;
      for (let at = 0; at < size; at += 1) out.push(bytes[place++]);
      continue;
    }
    const [codes, distances] = kind === 1 ? fixed : own();
    for (let one = symbol(codes); one !== 256; one = symbol(codes)) {
      if (one < 256) { out.push(one); continue; }
      const [base, more] = LENGTHS[one - 257], size = base + bits(more), [near, further] = FAR[symbol(distances)], from = out.length - near - bits(further);
      for (let at = 0; at < size; at += 1) out.push(out[from + at]);
    }
  }
  return Uint8Array.from(out);
}

// The codes of a packed array of so many numbers, each handed to `read`.
async function unpacked(text, size, read) {
  const bytes = await inflated(text), found = new Float32Array(size);
  for (let at = 0; at < size; at += 1) found[at] = read(bytes[at] | (bytes[size + at] << 8));
  return found;
}

function matrixOf({ data, max, signed }, size) {
  const top = signed ? MISSING >> 1 : MISSING - 1;
  return unpacked(data, size, (code) => {
    if (code === MISSING) return NaN;
    const root = signed ? (code - top) / top : code / top;
    return max * root * Math.abs(root);
  });
}

// What a head's output depends on: a basis of the columns of T, row by row, lengths of T's rows, and who sees whom.
async function spaceOf(packed, queries, keys) {
  const found = { whole: Boolean(packed.whole), rank: 0, visible: null };
  found.norms = new Float32Array((await inflated(packed.norms)).buffer);
  if (packed.visible) found.visible = await inflated(packed.visible);
  if (found.whole) return found;
  const { pivots } = packed, rank = (found.rank = pivots.length), middle = 2 ** (BASIS_BITS - 1) - 1;
  const rest = await unpacked(packed.data, (keys - rank) * rank, (code) => (packed.max * (code - middle)) / middle);
  found.basis = new Float64Array(keys * rank);
  const places = new Map(pivots.map((key, column) => [key, column]));
  for (let key = 0, row = 0; key < keys; key += 1) {
    if (places.has(key)) found.basis[key * rank + places.get(key)] = 1;
    else found.basis.set(rest.subarray(row * rank, ++row * rank), key * rank);
  }
  return found;
}
