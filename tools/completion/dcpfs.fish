# fish completion for dcpfs; made by "dcpfs help --completion fish"
function __dcpfs_complete
    set -l given (commandline -opc)
    dcpfs __complete $given[2..-1] (commandline -ct) 2>/dev/null
end
complete -c dcpfs -f -a '(__dcpfs_complete)'
