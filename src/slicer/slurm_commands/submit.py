"""``sbatch`` and ``srun``: they start what slicer runs, and what runs in a job."""

from __future__ import annotations

import os
from collections.abc import Sequence

from slicer.cli import background, common, runoptions, say
from slicer.cli.run import fields
from slicer.config.properties import parse_signal
from slicer.detach import service
from slicer.detach.handover import open_log
from slicer.detach.starting import program
from slicer.errors import EX_OK, SlicerError, UsageError
from slicer.gpu.ordinals import INDICES, VISIBLE
from slicer.job.launch import open_ledger
from slicer.job.plan import Invocation
from slicer.job.program import become, find_program
from slicer.kernel.signals import signal
from slicer.kernel.users import user_name
from slicer.ledger.ledger import Ledger
from slicer.model import LEASE_VARIABLE
from slicer.outcome import job_files
from slicer.record import record
from slicer.slurm_commands import jobs, options, request
from slicer.slurm_commands.options import Values
from slicer.slurm_commands.request import NodeNeeds, TaskArray
from slicer.slurm_commands.show import known, stop

_FILES = {"output": (1, 2), "error": (2,)}  # the descriptors of each
_LONGEST = 4 << 20  # bytes of a script, as in Slurm
# Says scancel when it is time, which the signal is not for. Ends with the job, as all that it leaves behind.
_WARNER = 'exec </dev/null >/dev/null 2>&1; sleep "$1"; trap "" "$2"; shift 2; exec "$@"'


@record
class BatchScript:
    """What all tasks of an array have in common."""

    values: Values
    needs: NodeNeeds
    script: bytes
    arguments: tuple[str, ...]  # of the script
    name: str
    array: TaskArray | None  # None: it is one job
    after: tuple[str, ...]  # as for --after
    environ: dict[str, str]


def sbatch(words: Sequence[str]) -> int:
    """Submit a script, and print the number of its job. Returns 0. Raises SlicerError, OSError."""
    values, rest = options.read("sbatch", words, is_submission=True)
    script = _script(values, rest)
    values = options.submission("sbatch", words, os.environ, script.decode("utf-8", "surrogateescape"))
    name = values.get("job-name") or os.path.basename([*rest, "wrap" if "wrap" in values else "sbatch"][0])
    batch = BatchScript(
        values, request.needs(values), script, tuple(rest[1:]), name,
        request.array(values["array"]) if "array" in values else None, _after(values),
        request.exported(os.environ, values.get("export", "ALL")),
    )  # fmt: skip
    request.warning(values.get("signal", "TERM"))
    if unused := options.ignored(values):
        say.line(f"without meaning on one machine: {', '.join(unused)}")
    os.chdir(values.get("chdir", "."))
    ids = [os.urandom(6).hex() for _ in (batch.array.indices if batch.array else "1")]
    _start_all(batch, ids)
    number = jobs.number_of(ids[0])
    print(number if "parsable" in values else f"Submitted batch job {number}", flush=True)
    if "wait" in values:
        os.execv(program()[0], [*program(), "wait", "--quiet", *ids])
    return EX_OK


def _script(values: Values, rest: Sequence[str]) -> bytes:
    """The script: of ``--wrap``, of a file, or of standard input. Raises UsageError, OSError."""
    if "wrap" in values:
        return f"#!/bin/sh\n# made by sbatch --wrap\n\n{values['wrap']}\n".encode("utf-8", "surrogateescape")
    with open(rest[0] if rest else 0, "rb", closefd=bool(rest)) as file:
        found = file.read(_LONGEST + 1)
    if not found.startswith(b"#!"):
        hint = "its first line has to be #! and the path of an interpreter"
        raise UsageError("This does not look like a batch script", hint=hint)
    if len(found) > _LONGEST or b"\r\n" in found:
        raise UsageError("Batch script is larger than 4 MiB, or has DOS line breaks (dos2unix mends these)")
    return found


def _after(values: Values) -> tuple[str, ...]:
    """The jobs to follow, by slicer's ids; of an array all tasks. Raises UsageError."""
    wanted = request.dependencies(values.get("dependency", ""))
    there = known() if wanted else []
    return tuple(f"{each.job}:{how}" for number, how in wanted for each in jobs.selected(there, number))


def _start_all(batch: BatchScript, ids: Sequence[str]) -> None:
    """All tasks, or none. Raises SlicerError, OSError."""
    ledger = open_ledger(service.environment(os.environ), say.Messages(-1), "auto")
    started = 0
    try:
        while started < len(ids):
            if _start(batch, ids, started, ledger) != EX_OK:  # it was said why
                raise SlicerError("Batch job submission failed")
            started += 1
    finally:
        if 0 < started < len(ids):
            stop(ids[:started])


def _start(batch: BatchScript, ids: Sequence[str], position: int, ledger: Ledger) -> int:
    """Start one job, or one task of an array; the exit code. Raises SlicerError, OSError."""
    values, array, job = batch.values, batch.array, ids[position]
    called = jobs.number_of(job)
    more: dict[str, object] = {"JOB_ID": called, "JOBID": called, "JOB_NAME": batch.name}
    after = list(batch.after)
    if array is not None:
        more |= {"ARRAY_JOB_ID": jobs.number_of(ids[0]), "ARRAY_TASK_ID": array.indices[position]}
        called = f"{jobs.number_of(ids[0])}_{array.indices[position]}"
        if 0 < array.most <= position:  # so many chains as may run at a time
            after.append(f"{ids[position - array.most]}:any")
    given = request.environment(batch.needs, os.uname().nodename, array, SUBMIT_DIR=os.getcwd(), **more)
    default = {"output": "slurm-%A_%a.out" if array else "slurm-%j.out"}
    paths = {option: _path(text, given) for option, text in (default | values).items() if option in _FILES}
    step = [jobs.marked(called), "--ntasks=1", f"--open-mode={values.get('open-mode', 't')}"]
    step += [f"--{option}={path.replace('%', '%%')}" for option, path in paths.items()]
    if "signal" in values and batch.needs.limit_s:
        step += [f"--signal={values['signal']}", f"--time=0:{batch.needs.limit_s}"]
    words = [f"--name={batch.name}", *request.run_options(values, batch.needs, after)]
    words += [f"--output={paths['output']}"] if _is_log(paths["output"]) else []
    os.environ.clear()
    os.environ.update({**batch.environ, **given})
    files = job_files.opened(os.environ)
    try:
        with common.failing("the script cannot be kept", files.log_of(job)):
            script = files.keep_script(job, batch.script)
    finally:
        files.close()
    command = [*program(), *jobs.STEP, *step, script, *batch.arguments]
    said = ["--detach", "--quiet", "--job", job, *words, "--", *command]
    parsed, ran = runoptions.parse(said, "run")
    invocation = Invocation(**fields(parsed, ran), hold=False)
    return background.detach(said, parsed, invocation, *background.asked(parsed, invocation), ledger)


def _path(pattern: str, given: dict[str, str]) -> str:
    """The path of a file for output, whose directory is made: some make it once sbatch has returned."""
    path = os.path.abspath(request.filled(pattern, given, user_name(os.geteuid()), "batch"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def _is_log(path: str) -> bool:
    """Whether slicer can take the file as the job's log. Else only the job itself opens it."""
    try:
        os.close(open_log(os.path.realpath(path)))
    except OSError:
        return False
    return True


def srun(words: Sequence[str]) -> int:
    """Become the command, in a job; elsewhere ``slicer run`` with it. Raises SlicerError, OSError."""
    values, command = options.read("srun", words, is_submission=True)
    environ = dict(os.environ)
    is_inside = bool(environ.get(LEASE_VARIABLE)) and "SLURM_JOB_ID" in environ
    if not command:
        raise UsageError("no command given", hint="srun [OPTIONS] COMMAND")
    number = values.get("ntasks") or (environ.get("SLURM_NTASKS") if is_inside else None) or "1"
    if request.count(number, "ntasks") > 1:
        hint = "-n1; torchrun, mpirun and the like start their own"
        raise UsageError(f"srun starts one process here, not {number}", where="--ntasks", hint=hint)
    os.chdir(values.get("chdir", "."))
    _redirect(values, environ)
    if is_inside:
        _warn(values, environ)
        gpus = environ.get(INDICES) or environ.get(VISIBLE)
        environ |= {"SLURM_JOB_GPUS": gpus, "SLURM_STEP_GPUS": gpus} if gpus else {}
    else:
        values = options.submission("srun", words, os.environ)
        name = values.get("job-name") or os.path.basename(command[0])
        asked = request.run_options(values, request.needs(values), _after(values))
        command = [*program(), "run", "--quiet", f"--name={name}", *asked, "--", *command]
    become(find_program(command[0], environ), tuple(command), environ, signal.pthread_sigmask(0, ()))


def _redirect(values: Values, environ: dict[str, str]) -> None:
    """Open the files for output that were asked for. Raises OSError."""
    is_appended = values.get("open-mode", "").startswith("a")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if is_appended else os.O_TRUNC)
    before = ""
    for option, places in _FILES.items():
        path = request.filled(values.get(option, ""), environ, user_name(os.geteuid()))
        if path and path != before:
            fd = os.open(path, flags, 0o666)
            for place in places:
                os.dup2(fd, place)
        before = path


def _warn(values: Values, environ: dict[str, str]) -> None:
    """Have a signal come before the time limit, for what the script has started or for itself."""
    limit_s = request.seconds(values.get("time", ""))
    if "signal" in values and limit_s is not None:
        name, before_s, is_for_script = request.warning(values["signal"])
        cancel = [*program(), jobs.STEP[0], "scancel", f"--signal={name}", *(["--batch"] * is_for_script)]
        delay = str(max(0, limit_s - before_s))
        words = ["sh", "-c", _WARNER, "sh", delay, str(parse_signal(name)), *cancel]
        os.posix_spawn("/bin/sh", [*words, environ["SLURM_JOB_ID"]], environ)
