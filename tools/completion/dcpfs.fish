# fish completion for dcpfs; made by "dcpfs help --completion fish"
function __dcpfs_complete
    set -l given (commandline -opc)
    # dcpload and dcpsave are verbs of dcpfs
    set given[1] (string replace -r '.*/' '' -- $given[1])
    test $given[1] = dcpfs; and set -e given[1]
    dcpfs __complete $given (commandline -ct) 2>/dev/null
end
for program in dcpfs dcpload dcpsave
    complete -c $program -f -a '(__dcpfs_complete)'
end
