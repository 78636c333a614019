# Completion of slicer for bash. `slicer completion bash` prints it.
#
# slicer itself finds the words, and offers none that mean something to a shell.

_slicer() {
    local line=${COMP_LINE:0:COMP_POINT} rest="" word="" i n=-1
    local -a words=() starts=()
    # bash takes words apart at = and : too. Those with nothing between them are one word to slicer.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:space:]]*}"}
        if ((i == 0)) || [[ $rest != "$line" ]]; then
            n=$((n + 1))
            starts[n]=$i
            words[n]=""
        fi
        word=${COMP_WORDS[i]}
        if ((${#word} > ${#rest})); then
            word=$rest # the cursor is in the middle of it
        fi
        words[n]+=$word
        line=${rest#"$word"}
    done
    if [[ $word == [=:] ]]; then
        word="" # bash adds to these instead of replacing them
    fi
    local typed=${words[n]%"$word"} joined kind value help from="" files=""
    printf -v joined '%s\n' "${words[@]}"
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            plain) COMPREPLY+=("${value#"$typed"}") ;;
            file) compopt -o default; files=yes ;;
            dir) compopt -o dirnames ;;
            command) from=${starts[value]} ;;
        esac
    done < <(_SLICER_WORDS=$joined _SLICER_COMPLETE=bash_words "${1/#~\//$HOME/}" 2>/dev/null)
    if [[ -n $files && ${#COMPREPLY[@]} -gt 0 ]]; then
        # bash looks for files by itself only if there is no other word.
        compopt -o filenames
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
    if [[ -n $from ]]; then
        # The words of the job's own command are completed as they would be without slicer.
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "$from"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$from"
        else
            compopt -o default
        fi
    fi
}

complete -o nosort -F _slicer slicer
