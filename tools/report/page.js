'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const ROW = 24, MOST_FILES = 2000, MOST_PARTS = 200;

/* Characters that change how others look are spelled out: a name is only text. */
const shown = text => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, c => '\\u{' + c.codePointAt(0).toString(16) + '}');
const none = v => v === null || v === undefined || v === '';
const number = v => none(v) ? '' : typeof v === 'number' && !(Number.isInteger(v) && Math.abs(v) < 1e15) ? v.toPrecision(5) : shown(v);
const percent = v => none(v) ? '' : (100 * v).toPrecision(3) + ' %';
function unit(n, names) {
	let i = 0;
	for (; n >= 1000 && i < names.length - 1; i++)
		n /= 1000;
	return (i ? n.toPrecision(3) : n) + names[i];
}
const bytes = n => unit(n, [' B', ' kB', ' MB', ' GB', ' TB', ' PB']);
const count = n => unit(n, ['', 'k', 'M', 'B', 'T']);
function hue(name) {
	let h = 0;
	for (const c of name)
		h = (h * 31 + c.codePointAt(0)) % 360;
	return h;
}
function make(tag, text, name) {
	const e = document.createElement(tag);
	if (text !== undefined)
		e.textContent = text;
	if (name)
		e.className = name;
	return e;
}

/* ---- rows: a tensor, its statistics, and how it differs ---- */

const stats = new Map((data.stats || []).map(s => [s.name, s]));
const differs = new Map((data.against ? data.against.rows : []).filter(d => d.kind === 'tensor').map(d => [d.name, d]));
const rows = data.tensors.map(t => {
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
const columns = [
	['key', 'Key'], ['dtype', 'Dtype'], ['shape', 'Shape'], ['elements', 'Params', count], ['nbytes', 'Bytes', bytes], ['min', 'Min'],
	['max', 'Max'], ['mean', 'Mean'], ['std', 'Std'], ['norm', 'Norm'], ['zeros', 'Zeros', percent], ['bad', 'NaN, Inf'],
	['state', 'State'], ['changed', 'Changed', percent], ['note', 'Note'],
].filter(c => ['key', 'dtype', 'shape', 'elements', 'nbytes'].includes(c[0]) || rows.some(r => !none(r[c[0]])));
const cell = (row, c) => none(row[c[0]]) ? '' : c[2] ? c[2](row[c[0]]) : number(row[c[0]]);

/* ---- the table: only rows in sight are elements ---- */

let list = rows, order = '', down = false, at = -1;
const box = $('box'), body = $('rows');

function draw() {
	const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 5);
	const last = Math.min(list.length, first + Math.ceil(box.clientHeight / ROW) + 10);
	$('space').style.height = list.length * ROW + 'px';
	body.style.transform = 'translateY(' + first * ROW + 'px)';
	body.replaceChildren(...list.slice(first, last).map((r, i) => {
		const line = make('div', undefined, r.bad || r.of.error ? 'row bad' : 'row');
		line.setAttribute('role', 'row');
		line.setAttribute('aria-rowindex', first + i + 2);
		line.setAttribute('aria-selected', first + i === at);
		line.id = 'row' + (first + i);
		line.onclick = () => select(first + i);
		for (const c of columns) {
			const e = make('span', cell(r, c));
			e.setAttribute('role', 'gridcell');
			e.title = none(r[c[0]]) ? '' : shown(r[c[0]]);
			line.append(e);
		}
		return line;
	}));
}

function update() {
	const words = $('search').value.toLowerCase().split(/\s+/).filter(w => w && !w.startsWith('file:'));
	const files = $('search').value.split(/\s+/).filter(w => w.startsWith('file:')).map(w => Number(w.slice(5)));
	const sign = down ? -1 : 1;
	list = rows.filter(r => {
		const text = (r.key + ' ' + r.dtype + ' ' + r.shape + ' ' + (r.state || '') + ' ' + (r.note || '')).toLowerCase();
		return words.every(w => text.includes(w)) && files.every(f => r.of.parts.some(p => p[0] === f));
	});
	const names = new Intl.Collator('en', { numeric: true });
	if (order)
		list.sort((a, b) => {
			const x = a[order], y = b[order];
			if (none(x) || none(y))
				return none(x) - none(y);
			return sign * (typeof x === 'number' && typeof y === 'number' ? x - y : names.compare(x, y));
		});
	at = -1;
	box.scrollTop = 0;
	box.removeAttribute('aria-activedescendant');
	box.setAttribute('aria-rowcount', list.length + 1);
	$('detail').hidden = true;
	$('count').textContent = list.length + ' of ' + rows.length + ' tensors, ' + count(list.reduce((n, r) => n + r.elements, 0)) +
		' parameters, ' + bytes(list.reduce((n, r) => n + r.nbytes, 0));
	draw();
}

function put(dl, name, value) {
	if (!none(value))
		dl.append(make('dt', name), make('dd', value));
}

function select(i) {
	if (!list.length)
		return;
	at = Math.max(0, Math.min(list.length - 1, i));
	if (at * ROW < box.scrollTop)
		box.scrollTop = at * ROW;
	else if ((at + 1) * ROW > box.scrollTop + box.clientHeight)
		box.scrollTop = (at + 1) * ROW - box.clientHeight;
	draw();
	box.setAttribute('aria-activedescendant', 'row' + at);
	const r = list[at], dl = make('dl');
	for (const c of columns)
		put(dl, c[1], cell(r, c));
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
	$('detail').replaceChildren(dl);
	$('detail').hidden = false;
}

function sort(c, by) {
	down = order === c[0] ? !down : !['key', 'dtype', 'shape', 'state', 'note'].includes(c[0]);
	order = c[0];
	for (const o of $('head').children)
		o.removeAttribute('aria-sort');
	by.setAttribute('aria-sort', down ? 'descending' : 'ascending');
	update();
}

for (const c of columns) {
	const e = make('div'), b = make('button', c[1]);
	e.setAttribute('role', 'columnheader');
	b.onclick = () => sort(c, e);
	e.append(b);
	$('head').append(e);
}
$('table').style.setProperty('--columns', columns.map(c => c[0] === 'key' ? 'minmax(18em, 4fr)' : 'minmax(5.5em, 1fr)').join(' '));
$('table').style.setProperty('--least', 18 + 5.5 * (columns.length - 1) + 'em');
$('search').oninput = update;
box.onscroll = draw;
box.onkeydown = e => {
	const page = Math.floor(box.clientHeight / ROW);
	const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: list.length - 1 }[e.key];
	if (to === undefined || e.altKey || e.ctrlKey || e.metaKey)
		return;
	e.preventDefault();
	select(to);
};
addEventListener('keydown', e => {
	if (e.key === '/' && e.target !== $('search')) {
		e.preventDefault();
		$('search').focus();
	} else if (e.key === 'Escape' && e.target === $('search')) {
		$('search').value = '';
		update();
	}
});

/* ---- the treemap: parts of keys by parameters ---- */

const root = { name: '', size: 0, parts: new Map() };
for (const r of rows) {
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

/* Strips along the shorter side, each as wide as makes its boxes nearest to squares. */
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

/* What has one part only is passed over. */
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
addEventListener('resize', () => {
	draw();
	map();
});
put($('facts'), 'Only there', [...differs.values()].filter(d => d.state === 'only in A').length || '');
descend(root);
update();
map();
