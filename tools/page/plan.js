const columns_of_ranks = [
	['rank', 'Rank'], ['at', 'Place'], ['needs', 'Needs', bytes], ['reads', 'Reads', bytes], ['from', 'From'], ['to', 'To'], ['files', 'Files'],
	['keeps', 'Keeps', bytes], ['sends', 'Sends', bytes], ['receives', 'Receives', bytes],
];
const sum = (some, name) => bytes(some.reduce((n, r) => n + r[name], 0));

show_table(data.ranks, columns_of_ranks.filter(c => data.ranks.some(r => !none(r[c[0]]))), false, {
	text: r => r.rank + ' ' + (r.at || '') + ' ' + (r.from || '') + ' ' + (r.to || ''),
	in_file: () => false,
	bad: () => false,
	count: some => 'ranks, need ' + sum(some, 'needs') + ', read ' + sum(some, 'reads') + ', send ' + sum(some, 'sends'),
	detail: () => {},
});
