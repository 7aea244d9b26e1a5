#compdef dcpfs dcpload dcpsave
# zsh completion for dcpfs; made by "dcpfs help --completion zsh"
_dcpfs()
{
	local -a given found shown open unshown
	local line word
	# dcpload and dcpsave are verbs of dcpfs
	[[ ${words[1]:t} == dcpfs ]] || given=("${words[1]:t}")
	((CURRENT > 2)) && given+=("${(@Q)words[2,CURRENT-1]}")
	for line in "${(@f)$(dcpfs __complete "${given[@]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
		word=${line%%$'\t'*}
		[[ -n $word ]] || continue
		line=${line/$'\t'/  -- }
		if [[ $word == '~/'* ]]; then word="~/${(q)word#\~/}"; else word=${(q)word}; fi
		if [[ $word == *[/=:] ]]; then open+=("$word") unshown+=("$line")
		else found+=("$word") shown+=("$line"); fi
	done
	compadd -Q -l -d shown -a found
	compadd -Q -S '' -l -d unshown -a open
}
if [[ $funcstack[1] == _dcpfs ]]; then
	_dcpfs "$@"
else
	compdef _dcpfs dcpfs dcpload dcpsave
fi
