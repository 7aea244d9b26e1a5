# bash completion for dcpfs; made by "dcpfs help --completion bash"
_dcpfs()
{
	local rest=${COMP_LINE:0:COMP_POINT} words=() gap word cut= raw i
	for ((i = 0; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		gap=${rest%%[![:space:]]*}
		rest=${rest#"$gap"}
		((i == COMP_CWORD)) && word=$rest
		rest=${rest#"$word"}
		if [[ -z $gap && i -gt 0 ]]; then words[-1]+=$word; else words+=("$word"); fi
	done
	raw=${words[-1]}
	words=("${words[@]//[\\\"\']/}")
	word=${words[-1]}
	[[ $word == *[=:]* ]] && cut=${word%"${word##*[=:]}"}
	# dcpload and dcpsave are verbs of dcpfs
	words[0]=${words[0]##*/}
	[[ ${words[0]} == dcpfs ]] && words=("${words[@]:1}")
	COMPREPLY=()
	while IFS=$'\t' read -r word _; do
		word=${word#"$cut"}
		[[ -n $word ]] || continue
		if [[ $raw == [\"\']* ]]; then
			[[ $word == *[\$\`\\\"\'!]* ]] && continue
		elif [[ $word == '~/'* ]]; then printf -v word '~/%q' "${word:2}"
		else printf -v word %q "$word"; fi
		COMPREPLY+=("$word")
	done < <(dcpfs __complete "${words[@]}" 2>/dev/null)
	[[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *[/=:] ]] && compopt -o nospace
	return 0
}
complete -F _dcpfs dcpfs dcpload dcpsave
