const MOST_FILES = 2000, MOST_PARTS = 200;

/* ---- rows: a tensor, its statistics, and how it differs ---- */

const stats = new Map((data.stats || []).map(s => [s.name, s]));
const differs = new Map((data.against ? data.against.rows : []).filter(d => d.kind === 'tensor').map(d => [d.name, d]));
const tensors = data.tensors.map(t => {
	const s = stats.get(t.key) || {}, d = differs.get(t.key);
	const row = { key: t.key, dtype: t.dtype, shape: '[' + t.shape.join(', ') + ']', elements: t.elements, nbytes: t.nbytes, of: t };
	for (const name of ['min', 'max', 'mean', 'std', 'norm'])
		row[name] = s[name];
	row.zeros = s.n ? s.zeros / s.n : null;
	row.bad = s.nan + s.inf > 0 ? s.nan + s.inf : null;
	row.note = t.error || (t.alias_of ? 'tied to ' + t.alias_of : s.note);
	if (data.against)
		row.state = d ? d.state : 'equal';
	row.changed = data.against ? d ? d.fraction : 0 : null;
	return row;
});
const shown_columns = [
	['key', 'Key'], ['dtype', 'Dtype'], ['shape', 'Shape'], ['elements', 'Params', count], ['nbytes', 'Bytes', bytes], ['min', 'Min'],
	['max', 'Max'], ['mean', 'Mean'], ['std', 'Std'], ['norm', 'Norm'], ['zeros', 'Zeros', percent], ['bad', 'NaN, Inf'],
	['state', 'State'], ['changed', 'Changed', percent], ['note', 'Note'],
].filter(c => ['key', 'dtype', 'shape', 'elements', 'nbytes'].includes(c[0]) || tensors.some(r => !none(r[c[0]])));

show_table(tensors, shown_columns, true, {
	text: r => r.key + ' ' + r.dtype + ' ' + r.shape + ' ' + (r.state || '') + ' ' + (r.note || ''),
	in_file: (r, file) => r.of.parts.some(p => p[0] === file),
	bad: r => r.bad || r.of.error,
	count: some => 'tensors, ' + count(some.reduce((n, r) => n + r.elements, 0)) + ' parameters, ' + bytes(some.reduce((n, r) => n + r.nbytes, 0)),
	detail: (r, dl) => {
		for (const [file, n] of r.of.parts.slice(0, 20))
			put(dl, 'in ' + shown(data.files[file].name), bytes(n));
		if (r.of.parts.length > 20)
			put(dl, 'and', r.of.parts.length - 20 + ' files more');
		const s = stats.get(r.key) || {}, d = differs.get(r.key) || {};
		put(dl, 'first NaN', number(s.first_nan));
		put(dl, 'first Inf', number(s.first_inf));
		put(dl, 'first change', number(d.first));
		put(dl, 'greatest change', number(d.max_abs));
		put(dl, 'relative L2', number(d.relative_l2));
	},
});

/* ---- the treemap: parts of keys by parameters ---- */

const root = { name: '', size: 0, parts: new Map() };
for (const r of tensors) {
	let node = root;
	if (r.of.alias_of)
		continue;
	root.size += r.elements;
	for (const part of r.key.split('.')) {
		if (!node.parts.has(part))
			node.parts.set(part, { name: part, size: 0, parts: new Map(), row: null });
		node = node.parts.get(part);
		node.size += r.elements;
	}
	node.row = r;
}
let path = [root];

/* Lay boxes in strips along the shorter side, which are so wide that boxes are nearly squares. */
function lay(items, x, y, w, h, each) {
	items = items.filter(i => i.size > 0).sort((a, b) => b.size - a.size);
	let left = items.reduce((n, i) => n + i.size, 0);
	for (let i = 0; i < items.length && w >= 2 && h >= 2;) {
		const wide = w >= h, side = wide ? h : w, depth = wide ? w : h;
		let sum = 0, best = Infinity, k = i;
		for (; k < items.length; k++) {
			const s = sum + items[k].size, thick = s / left * depth;
			const ratio = v => Math.max(v / s * side / thick, thick / (v / s * side));
			const worst = Math.max(ratio(items[i].size), ratio(items[k].size));
			if (k > i && worst > best)
				break;
			best = worst;
			sum = s;
		}
		const thick = sum / left * depth;
		for (let along = 0; i < k; i++) {
			const long = items[i].size / sum * side;
			if (wide)
				each(items[i], x, y + along, thick, long);
			else
				each(items[i], x + along, y, long, thick);
			along += long;
		}
		left -= sum;
		if (wide) {
			x += thick;
			w -= thick;
		} else {
			y += thick;
			h -= thick;
		}
	}
}

/* Skip nodes with a single part. */
function descend(node) {
	while (node.parts.size === 1 && [...node.parts.values()][0].parts.size) {
		node = [...node.parts.values()][0];
		path.push(node);
	}
}

function enter(node) {
	path.push(node);
	descend(node);
	map();
	$('path').lastChild.focus();
}

function map() {
	const place = $('map'), top = path[path.length - 1];
	place.replaceChildren();
	$('path').replaceChildren(...path.map((p, i) => {
		const b = make('button', i ? shown(p.name) : shown(data.version));
		b.onclick = () => {
			path = path.slice(0, i + 1);
			map();
		};
		return b;
	}));
	lay([...top.parts.values()], 0, 0, place.clientWidth, place.clientHeight, (item, x, y, w, h) => {
		if (w < 2 || h < 2)
			return;
		const b = make('button', undefined, 'tile'), text = shown(item.name) + ' ' + count(item.size);
		b.style.cssText = 'left:' + x + 'px;top:' + y + 'px;width:' + (w - 1) + 'px;height:' + (h - 1) + 'px';
		b.style.setProperty('--hue', hue(item.name));
		b.title = text + ' parameters';
		b.setAttribute('aria-label', b.title);
		if (w > 40 && h > 16)
			b.textContent = text;
		b.onclick = () => {
			if (item.parts.size)
				return enter(item);
			$('search').value = '';
			update();
			select(list.indexOf(item.row));
			box.focus();
		};
		place.append(b);
	});
}
$('map').onkeydown = e => {
	if ((e.key === 'Backspace' || e.key === 'Escape') && path.length > 1) {
		path.pop();
		map();
		$('path').lastChild.focus();
	}
};

/* ---- the shard map: what lies in each file ---- */

const inside = data.files.map(() => []);
for (const t of data.tensors)
	for (const [file, n] of t.parts)
		inside[file].push([n, t.key]);
const most = data.files.reduce((n, f) => Math.max(n, f.nbytes), 1);
data.files.slice(0, MOST_FILES).forEach((f, i) => {
	const line = make('div', undefined, 'file'), name = make('button', shown(f.name)), track = make('div', undefined, 'track');
	const parts = inside[i].sort((a, b) => b[0] - a[0]);
	name.title = 'show its tensors';
	name.onclick = () => {
		$('search').value = 'file:' + i;
		update();
		$('search').focus();
	};
	const add = (n, text, color) => {
		const part = make('span');
		part.style.cssText = 'width:' + 100 * n / most + '%';
		part.style.setProperty('--hue', color);
		part.title = text + '\n' + bytes(n);
		track.append(part);
	};
	for (const [n, key] of parts.slice(0, MOST_PARTS))
		add(n, shown(key), hue(key));
	if (parts.length > MOST_PARTS)
		add(parts.slice(MOST_PARTS).reduce((n, p) => n + p[0], 0), parts.length - MOST_PARTS + ' tensors more', 0);
	line.append(name, track, make('span', bytes(f.nbytes) + ', ' + f.tensors + (f.tensors === 1 ? ' tensor' : ' tensors')));
	$('files').append(line);
});
if (data.files.length > MOST_FILES)
	$('files').append(make('p', 'and ' + (data.files.length - MOST_FILES) + ' files more'));

put($('facts'), 'Format', shown(data.format));
put($('facts'), 'Tensors', String(data.index.tensors));
put($('facts'), 'Parameters', count(data.index.elements));
put($('facts'), 'Bytes', bytes(data.index.nbytes));
put($('facts'), 'Objects', String(data.index.objects));
put($('facts'), 'Broken', data.index.broken ? String(data.index.broken) : '');
put($('facts'), 'Statistics', stats.size ? 'of ' + stats.size + ' tensors' : 'none are kept: dcpfs report --stats');
if (data.against)
	put($('facts'), 'Compared with', shown(data.against.version));
addEventListener('resize', map);
put($('facts'), 'Only there', [...differs.values()].filter(d => d.state === 'only in A').length || '');
descend(root);
map();
