"""Asks git which code a job runs: the commit, the branch, and whether files differ from it.

The supervisor does this just after the command's start, in a process that it does not wait for. What has not
been said at the job's end is not known.

Nothing that a repository says is executed: no hook, filter, fsmonitor, external diff or textconv. Nobody's
configuration but the repository's own is read, and that only if the repository is the user's. Nothing is
locked, written or fetched.
"""

from __future__ import annotations

import os

from slicer.kernel.signals import signal
from slicer.model import Git

_LIMIT_S = 5  # for a huge tree or a slow disk, at each start; also if the supervisor is killed
_MOST_BYTES, _MOST_BRANCH = 4096, 200
_NO_DIFF = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # the SHA-256 of nothing
_IN_TIME = f'exec nice -n 19 timeout -s KILL {_LIMIT_S} sh -c "$0" sh "$1"'

# Not the user's GIT_*, nor a home: it may be on a server that is away.
ENVIRONMENT = {
    "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1",
}  # fmt: skip

GUARDS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never")

# `git diff` would lock the index (also with GIT_OPTIONAL_LOCKS=0, at least up to 2.39), and shows what
# diff.* of the configuration says; `diff-index` does neither.
_SCRIPT = """\
cd -P -- "$1" || exit
until [ -e .git ]; do [ "$PWD" != / ] && cd .. || exit; done
[ -O . ] && [ -O .git ] || exit
export GIT_CEILING_DIRECTORIES="${PWD%/*}"
set -- GUARDS
git "$@" rev-parse HEAD --abbrev-ref HEAD || exit
filters=$(git "$@" config --name-only --get-regexp '^filter\\.')
while read -r name; do
    case $name in
        *=*) exit ;;  # no -c can name it
        ?*) set -- "$@" -c "$name=" ;;
    esac
done <<END
$filters
END
set -- "$@" diff-index -p --full-index --no-ext-diff --no-textconv --ignore-submodules=dirty
exec 3>&1
{ git "$@" HEAD; echo $? >&3; } | sha256sum
""".replace("GUARDS", " ".join(GUARDS))


class GitLook:
    """One look at a directory. ``path``: the user's PATH. Raises OSError."""

    def __init__(self, directory: str, path: str) -> None:
        self._said = os.memfd_create("slicer-git")
        self._pid = os.posix_spawn(
            "/bin/sh", ("sh", "-c", _IN_TIME, _SCRIPT, directory),
            {**ENVIRONMENT, "PATH": trusted_path(path)},
            file_actions=(
                (os.POSIX_SPAWN_DUP2, self._said, 1),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ),
            # Ctrl-Z would stop it before its exec, and us with it until then.
            setpgroup=0, setsigmask=(signal.SIGTSTP,), setsigdef=(signal.SIGPIPE,),
        )  # fmt: skip

    def reap(self) -> None:
        """Collect it if it has ended."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0

    def end(self) -> Git | None:
        """What it has said by now; it is ended, but not waited for."""
        self.reap()
        if self._pid:
            os.killpg(self._pid, signal.SIGKILL)
        return parsed(os.pread(self._said, _MOST_BYTES, 0))


def trusted_path(path: str) -> str:
    """PATH without the directories that are another one in each work tree."""
    return ":".join(folder for folder in path.split(":") if folder.startswith("/"))


def parsed(said: bytes) -> Git | None:
    """What the script has said so far: the commit, the branch, the exit code of the diff, its hash. Pure."""
    lines = said.decode("utf-8", "replace").split("\n")[:-1]  # the last one is not whole
    commit, branch, status, digest = (*lines, "", "", "", "")[:4]
    if not _is_hash(commit):
        return None
    diff = digest.partition(" ")[0]
    dirty = int(diff != _NO_DIFF) if status == "0" and _is_hash(diff) else None
    return Git(commit, branch[:_MOST_BRANCH] if branch != "HEAD" else "", dirty, diff if dirty else "")


def _is_hash(text: str) -> bool:
    return len(text) in (40, 64) and set("0123456789abcdef").issuperset(text)
