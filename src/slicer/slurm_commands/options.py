"""The command lines of Slurm's commands, ``#SBATCH`` lines and ``SBATCH_`` variables. Pure."""

from __future__ import annotations

import getopt
import shlex
from collections.abc import Mapping, Sequence

from slicer.errors import UsageError

Values = dict[str, str]  # of options, by their long names

# Each as in Slurm's manual, after its letter: "=" takes a value, "?" may take one (--nice=5).
_RUN = """
    J:job-name= o:output= e:error= open-mode= t:time= D:chdir= b:begin= d:dependency= c:cpus-per-task=
    n:ntasks= N:nodes= ntasks-per-node= tasks-per-node= G:gpus= gpus-per-node= gpus-per-task= cpus-per-gpu=
    gres= mem= mem-per-cpu= mem-per-gpu= signal= export= Q:quiet
"""
# Without meaning on one machine. sbatch says which there are.
_IGNORED = """
    A:account= p:partition= q:qos= M:clusters= C:constraint= w:nodelist= x:exclude= comment= wckey=
    mail-type= mail-user= exclusive? s:oversubscribe L:licenses= reservation= hint= cpu-bind= gpu-bind=
    mem-bind= m:distribution= threads-per-core= profile= tmp= get-user-env? ntasks-per-gpu= v:verbose
    propagate? contiguous ntasks-per-socket= sockets-per-node= cores-per-socket= mincpus= gpu-freq=
    O:overcommit k:no-kill? switches= acctg-freq= S:core-spec= spread-job use-min-nodes deadline= nice?
    priority= kill-on-invalid-dep= mpi= K:kill-on-bad-exit? gres-flags=
"""
_REFUSED = {
    "het-group": "a job of several parts would need several nodes",
    "hold": "nobody could release it: submit it later, or with --begin",
    "input": "a job's standard input is empty: write < FILE in the script",
    "test-only": "slicer run --dry-run shows what a job would get",
    "container": "put the container's command into the script",
}
_TAKEN = f"{_RUN} {_IGNORED} het-group= H:hold i:input= test-only container="
_PLACE = "M:clusters= p:partition= A:account= u:user= n:name= Q:quiet"
_WORDS = {
    "sbatch": f"{_TAKEN} a:array= wrap= parsable W:wait requeue no-requeue",
    "srun": f"{_TAKEN} jobid= u:unbuffered l:label pty? overlap",
    "squeue": f"{_PLACE} h:noheader j:jobs= o:format= t:states= me l:long r:array a:all S:sort=",
    "sacct": """
        n:noheader j:jobs= o:format= P:parsable2 p:parsable X:allocations S:starttime= E:endtime= s:state=
        name= u:user= a:allusers A:accounts= r:partition= M:clusters= D:duplicates delimiter= units=
    """,
    "scancel": f"{_PLACE} me s:signal= b:batch f:full t:state=",
    "sinfo": "h:noheader o:format= p:partition= N:Node s:summarize",
    "scontrol": "o:oneliner Q:quiet",
    "sacctmgr": "n:noheader s:associations P:parsable2 p:parsable",
}
_VARIABLES = {"time": "TIMELIMIT", "array": "ARRAY_INX"}


def _names(words: str) -> list[tuple[str, str]]:
    """The letter ("": none) and the long name of each, with what follows it."""
    return [(letter, name) for letter, _, name in (word.rpartition(":") for word in words.split())]


def listed(program: str) -> str:
    """Its options, for people. Raises UsageError."""
    if program not in _WORDS:
        raise UsageError(f"there is no {program!r:.40} of Slurm's commands here")
    return " ".join(f"--{name.rstrip('?')}" for _, name in _names(_WORDS[program]))


def read(program: str, words: Sequence[str], *, is_submission: bool = False) -> tuple[Values, list[str]]:
    """The options, and the other words. Raises UsageError.

    ``is_submission``: the options end before the first other word, and of one said twice the last counts.
    Elsewhere its values are joined by commas.
    """
    known = _names(_WORDS[program])
    letters = "".join(letter + ":" * name.endswith("=") for letter, name in known if letter)
    optional = {f"--{name[:-1]}" for _, name in known if name.endswith("?")}
    longs = [name.replace("?", "=") for _, name in known]
    parse = getopt.getopt if is_submission else getopt.gnu_getopt
    try:
        pairs, rest = parse([f"{word}=" if word in optional else word for word in words], letters, longs)
    except getopt.GetoptError as error:
        raise UsageError(error.msg) from error
    if is_submission:
        rest = [*words[len(words) - len(rest) :]]  # of the command, to which nothing is added
    by_letter = {f"-{letter}": name.rstrip("=?") for letter, name in known if letter}
    found: Values = {}
    for option, value in pairs:
        name = by_letter.get(option) or option[2:]
        found[name] = f"{found[name]},{value}" if found.get(name) and not is_submission else value
    return found, rest


def _directives(script: str) -> list[str]:
    """The words of the ``#SBATCH`` lines before the script's first command. Raises UsageError."""
    words: list[str] = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            try:
                words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise UsageError(f"line {number} of the script: {error}") from error
    return words


def submission(program: str, words: Sequence[str], environ: Mapping[str, str], script: str = "") -> Values:
    """The options of a submission: of the command line, else of variables, else of the script.

    Raises UsageError, also for what cannot be done here.
    """
    variables: Values = {}
    for name in (name.rstrip("=?") for _, name in _names(_WORDS["sbatch"]) if program == "sbatch"):
        variable = f"SBATCH_{_VARIABLES.get(name, name.upper().replace('-', '_'))}"
        variables |= {name: environ[variable]} if variable in environ else {}
    lines, _ = read(program, _directives(script), is_submission=True)
    values = {**lines, **variables, **read(program, words, is_submission=True)[0]}
    for name, why in _REFUSED.items():
        if name in values:
            raise UsageError(why, where=f"--{name}")
    return values


def ignored(values: Values) -> list[str]:
    """Those of the options that change nothing here."""
    known = {name.rstrip("=?") for _, name in _names(_IGNORED)}
    return [f"--{name}" for name in values if name in known]
