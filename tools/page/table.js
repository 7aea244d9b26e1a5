'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const ROW = 24;

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

/* ---- the table: only rows in sight are elements ---- */

const cell = (row, c) => none(row[c[0]]) ? '' : c[2] ? c[2](row[c[0]]) : number(row[c[0]]);

let rows = [], columns = [], hooks = {}, list = rows, order = '', down = false, at = -1;
const box = $('box'), body = $('rows');
const is_text = c => rows.some(r => typeof r[c[0]] === 'string');

function draw() {
	const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 5);
	const last = Math.min(list.length, first + Math.ceil(box.clientHeight / ROW) + 10);
	$('space').style.height = list.length * ROW + 'px';
	body.style.transform = 'translateY(' + first * ROW + 'px)';
	body.replaceChildren(...list.slice(first, last).map((r, i) => {
		const line = make('div', undefined, hooks.bad(r) ? 'row bad' : 'row');
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
	const words = $('search').value.toLowerCase().split(/\s+/).filter(w => w);
	const sign = down ? -1 : 1;
	const names = new Intl.Collator('en', { numeric: true });
	list = rows.filter(r => {
		const text = hooks.text(r).toLowerCase();
		return words.every(w => w.startsWith('file:') ? hooks.in_file(r, Number(w.slice(5))) : text.includes(w));
	});
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
	$('count').textContent = list.length + ' of ' + rows.length + ' ' + hooks.count(list);
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
	const dl = make('dl');
	for (const c of columns)
		put(dl, c[1], cell(list[at], c));
	hooks.detail(list[at], dl);
	$('detail').replaceChildren(dl);
	$('detail').hidden = false;
}

function sort(c, by) {
	down = order === c[0] ? !down : !is_text(c);
	order = c[0];
	for (const o of $('head').children)
		o.removeAttribute('aria-sort');
	by.setAttribute('aria-sort', down ? 'descending' : 'ascending');
	update();
}

/*
 * Show the rows @all in the columns @of: [member, title, text of a value]. @wide: the first column
 * is wide. @page has functions: the search looks at text(row) and in_file(row, number), bad(row)
 * marks a row, count(list) stands beside the search, detail(row, dl) adds details of the selected
 * row.
 */
function show_table(all, of, wide, page) {
	rows = all;
	columns = of;
	hooks = page;
	for (const c of columns) {
		const e = make('div'), b = make('button', c[1]);
		e.setAttribute('role', 'columnheader');
		b.onclick = () => sort(c, e);
		e.append(b);
		$('head').append(e);
	}
	$('table').style.setProperty('--columns', columns.map((c, i) => i || !wide ? 'minmax(5.5em, 1fr)' : 'minmax(18em, 4fr)').join(' '));
	$('table').style.setProperty('--least', (wide ? 18 : 5.5) + 5.5 * (columns.length - 1) + 'em');
	$('search').oninput = update;
	update();
}

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
addEventListener('resize', draw);
