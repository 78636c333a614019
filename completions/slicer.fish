# Completion of slicer for fish. `slicer completion fish` prints it.
#
# slicer itself finds the words, and offers none that mean something to a shell.

function __slicer_words
    set -l words (commandline -opc) (commandline -ct)
    type -q -- $words[1]; or return
    set -l joined (printf '%s\n' $words | string collect --no-trim-newlines)
    set -l lines (_SLICER_WORDS=$joined _SLICER_COMPLETE=fish_words $words[1] 2>/dev/null)
    for line in $lines
        set -l parts (string split \t -- $line)
        switch $parts[1]
            case plain
                printf '%s\t%s\n' $parts[2] $parts[3]
            case file dir
                set -l option (string match -r -- '^-[^=]*=' $words[-1] | string collect)
                set -l typed (string replace -- "$option" '' $words[-1])
                set -l finder __fish_complete_path
                test $parts[1] = dir; and set finder __fish_complete_directories
                for path in ($finder "$typed")
                    printf '%s\n' "$option$path"
                end
            case command
                # The words of the job's own command are completed as they would be without slicer.
                set -l before (string escape -- $words[(math $parts[2] + 1)..-2])
                complete -C (string join ' ' -- $before $words[-1])
        end
    end
end

complete -c slicer -f -k -a '(__slicer_words)'
