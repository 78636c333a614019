"""The arguments of :func:`slicer.acquire`: what is wrong with them, and what they ask for. Pure."""

from __future__ import annotations

import math

from slicer.config.build import unknown_slot
from slicer.errors import UsageError
from slicer.ledger import nesting
from slicer.ledger.leasing import Needs
from slicer.model import CPU, PRIORITY_MAX, Demand
from slicer.quantity import QuantityError, parse_mib
from slicer.record import as_dict, record
from slicer.state.statefile import SECONDS_MAX
from slicer.text import split_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from slicer.config.profiles import Config
    from slicer.ledger.nesting import OuterJobs
    from slicer.model import Then


@record
class Arguments:
    name: str
    gpus: int
    vram: str | None
    gpu: Sequence[int | str] | int | str | None
    margin: str | None
    cpu_slots: int
    slots: Mapping[str, int] | None
    priority: int
    expected_seconds: float | None
    wait: bool
    max_wait: float | None
    then: Then | None


def check(arguments: Arguments) -> None:
    """Raises ValueError for arguments that are invalid on any machine."""
    _check_types(arguments)
    gpus, then = arguments.gpus, arguments.then
    words = _words(arguments.gpu)
    outside = f"priority={arguments.priority}: must be from -{PRIORITY_MAX} to {PRIORITY_MAX}"
    shortest_s = min(arguments.max_wait or 0, arguments.expected_seconds or 0)
    wrong = {
        "gpus, cpu_slots and slots: nothing is requested": gpus == 0 and not _slots(arguments),
        f"gpus={gpus}: cannot be negative": gpus < 0,
        "vram: is only valid with GPUs, but gpus=0": arguments.vram is not None and gpus == 0,
        "margin: is only valid with vram": arguments.margin is not None and arguments.vram is None,
        f"gpu: names {len(words)}, fewer than gpus={gpus}": bool(words) and len(words) < gpus,
        outside: abs(arguments.priority) > PRIORITY_MAX,
        "max_wait: is only valid with wait=True": arguments.max_wait is not None
        and not arguments.wait,
        "then: is only valid with max_wait": then is not None and arguments.max_wait is None,
        f"then={then!r}: must be 'run' or 'fail'": then not in (None, "run", "fail"),
        "max_wait and expected_seconds cannot be negative": shortest_s < 0,
    }
    for problem, is_so in wrong.items():
        if is_so:
            raise ValueError(problem)


def needs_of(arguments: Arguments, config: Config, outer: OuterJobs, environ: dict[str, str]) -> Needs:
    """What is needed beyond the outer jobs' leases."""
    margin_mib = config.margin_mib if arguments.margin is None else _mib(arguments.margin, "margin") or 0
    wanted = Demand(
        int(arguments.gpus), _words(arguments.gpu), _mib(arguments.vram, "vram"), margin_mib,
        _slots(arguments), int(arguments.priority),
    )  # fmt: skip
    for name in wanted.slots:
        if name not in config.slots:
            message, hint = unknown_slot(name, config.slots)
            raise UsageError(message, where="slots", hint=hint)
    return Needs(
        **as_dict(nesting.missing(wanted, outer, nesting.skips_gpu_lock(environ))), slot_limits=config.slots,
        limit_s=None, expect_s=_seconds(arguments.expected_seconds), wait=bool(arguments.wait),
        max_wait_s=_seconds(arguments.max_wait), then=arguments.then, plain_lock=config.compat_gpu_lock,
    )  # fmt: skip


def _check_types(arguments: Arguments) -> None:
    """Raises ValueError. Others read these figures and wait by them."""
    if not isinstance(arguments.name, str):
        raise ValueError(f"name={arguments.name!r}: must be a string")
    for argument in ("gpus", "priority", "cpu_slots"):
        if not _is_whole(getattr(arguments, argument)):
            raise ValueError(f"{argument}={getattr(arguments, argument)!r}: must be a whole number")
    for argument in ("vram", "margin"):
        value = getattr(arguments, argument)
        if value is not None and not isinstance(value, str) and not _is_number(value):
            raise ValueError(f"{argument}={value!r}: must be a finite number, or a size such as '8G'")
    for argument in ("expected_seconds", "max_wait"):
        value = getattr(arguments, argument)
        if value is not None and not _is_number(value):
            raise ValueError(f"{argument}={value!r}: must be a finite number")
        if (value or 0) > SECONDS_MAX:
            raise ValueError(f"{argument}={value!r}: must be at most {SECONDS_MAX}")
    if not isinstance(arguments.gpu, int | str | None) and not hasattr(arguments.gpu, "__iter__"):
        raise ValueError(f"gpu={arguments.gpu!r}: must be an index, a UUID, or several of them")
    if arguments.slots is not None and not hasattr(arguments.slots, "keys"):
        raise ValueError(f"slots={arguments.slots!r}: must map names to numbers")


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is a finite number of any type."""
    return hasattr(value, "__float__") and not isinstance(value, bool) and math.isfinite(value)


def _slots(arguments: Arguments) -> dict[str, int]:
    """The number of slots by name. Raises ValueError."""
    slots = dict(arguments.slots or {})
    if arguments.cpu_slots and CPU in slots:
        raise ValueError(f"cpu_slots={arguments.cpu_slots}: slots already has CPU slots")
    said = {"cpu_slots": (CPU, arguments.cpu_slots)} if CPU not in slots else {}
    said |= {f"slots[{name!r}]": (name, count) for name, count in slots.items()}
    for argument, (name, count) in said.items():
        if not isinstance(name, str):
            raise ValueError(f"{argument}: the name of a slot must be a string")
        if not _is_whole(count):
            raise ValueError(f"{argument}={count!r}: must be a whole number")
        if count < 0:
            raise ValueError(f"{argument}={count}: cannot be negative")
    return {name: int(count) for name, count in said.values() if count}


def _seconds(value: float | None) -> float | None:
    return None if value is None else float(value)  # a lease's file has no numpy types or the like


def _mib(value: object, argument: str) -> int | None:
    if value is None:
        return None
    if value and not isinstance(value, str):
        raise ValueError(f'{argument}={value!r}: the unit is missing, as in {argument}="{value}G"')
    try:
        mib = parse_mib(str(value))
    except QuantityError as error:
        raise ValueError(f"{argument}: {error}") from None
    if mib < 0 or (mib == 0 and argument == "vram"):
        raise ValueError(f"{argument}={value!r}: must be above 0")
    return mib


def _words(gpu: Sequence[int | str] | int | str | None) -> tuple[str, ...]:
    if gpu is None:
        return ()
    given = split_list(gpu) if isinstance(gpu, str) else [gpu] if isinstance(gpu, int) else gpu
    return tuple(str(word).strip() for word in given)
