"""Why a name is not a resource property that a user may set. Imported only after an error."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# slicer sets these itself. A second owner would break a promise about the lease or the outcome.
RESERVED = {
    "Slice": 'the profile\'s "slice" and --gpus decide it',
    "Description": "--name decides it",
    "Delegate": "systemd does not notice a memory kill in a delegated scope",
    "DelegateControllers": "systemd does not notice a memory kill in a delegated scope",
    "CollectMode": "the remains of a failed scope would pile up",
    "AddRef": "slicer decides how long the unit stays loaded",
    "Controller": "slicer itself ends the scope",
    "PIDs": "slicer puts the command, and nothing else, into the scope",
    "PIDFDs": "slicer puts the command, and nothing else, into the scope",
    "DefaultDependencies": "the slice decides it",
    **dict.fromkeys(
        ("CPUAccounting", "MemoryAccounting", "IOAccounting", "TasksAccounting"), "slicer accounts every job"
    ),
}
# Names from services, nice or older systemds, and a scope's counterpart.
INSTEAD = {
    "Nice": "CPUWeight=50",
    "CPUSchedulingPolicy": "CPUWeight=idle",
    "CPUAffinity": "AllowedCPUs=0-3",
    "CPUShares": "CPUWeight=50",
    "CPUQuotaPerSecUSec": "CPUQuota=200%",
    "CPUQuotaPeriodUSec": "CPUQuotaPeriodSec=10ms",
    "IOSchedulingClass": "IOWeight=20",
    "IOSchedulingPriority": "IOWeight=20",
    "BlockIOWeight": "IOWeight=20",
    "MemoryLimit": "MemoryMax=8G",
    "LimitAS": "MemoryMax=8G",
    "LimitRSS": "MemoryMax=8G",
    "LimitNPROC": "TasksMax=500",
    "LimitCPU": "RuntimeMaxSec=2h",
    "OOMScoreAdjust": "OOMPolicy=kill or MemoryMax=8G",
    "RuntimeMaxUSec": "RuntimeMaxSec=2h",
    "TimeoutSec": "TimeoutStopSec=10s",
    "TimeoutStopUSec": "TimeoutStopSec=10s",
}

# Other programs' terms, and slicer's for the same. The first one known in a place is meant.
_SYNONYMS = {
    "memory": ("memorymax", "vram"),
    "mem": ("memorymax", "vram"),
    "gpumem": ("vram",),
    "gpumemory": ("vram",),
    "kill": ("stop",),
    "cancel": ("stop",),
}


def known_names(word: str, known: Collection[str]) -> str:
    """A hint for an unknown name: the most likely one, and all known ones."""
    close = nearest(word, known)
    meant = f'did you mean "{close}"? ' if close else ""
    return f"{meant}known: {', '.join(sorted(known))}"


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known word that ``word`` most likely means, or "".

    Another program's term goes before a similar word, of which ``cutoff`` (to 1) must be the same. Nobody
    mistypes the first letter. Case, dashes and underscores do not count.
    """
    folded = {_folded(name): name for name in known}
    typed = _folded(word)
    for meant in _SYNONYMS.get(typed, ()):
        if meant in folded:
            return folded[meant]
    alike = [name for name in folded if name[:1] == typed[:1]]
    import difflib  # 3 ms, and most names are right

    found = difflib.get_close_matches(typed, alike, n=1, cutoff=cutoff)
    return folded[found[0]] if found else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def refusal(name: str, names: Iterable[str]) -> tuple[str, str]:
    """The message and the hint for a name that is not in the table of properties."""
    if name in RESERVED:
        return f"{name} cannot be set: {RESERVED[name]}", ""
    if name in INSTEAD:
        return f"a scope has no {name}", f"use {INSTEAD[name]}"
    wanted = nearest(name, names)
    hint = f"did you mean {wanted}?" if wanted else "systemd.resource-control(5) lists them"
    return f"unknown resource property {name[:60]!r}", hint
