"""Units in one place: sizes, percentages, CPU lists, durations and weights, read and written.

The readers accept the syntax of systemd's unit files (``8G`` is 1024-based, ``90`` is seconds, ``0-3,8`` are
CPUs), except where systemd's meaning would be surprising. Each raises :class:`QuantityError`, whose one-line
message contains what was expected, with an example.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

INFINITY = 2**64 - 1  # systemd's "no limit" on D-Bus
_TOO_BIG = 2**63  # the kernel's and systemd's own parsers stop at a signed 64-bit number
_DIGITS = "0123456789"
_LONGEST = 30  # no number here has more digits
LONGEST_US = 2**40 * 10**6  # of a duration: 34,000 years, still exact as a number of seconds

_FEWEST_MIB = 100  # a smaller number without a unit was meant in GiB
MAX_CPU = 8191  # the largest NR_CPUS that a kernel can be built with, minus one
MAX_CORES_PERCENT = 1_000_000  # 10,000 CPUs; a larger quota is a typo

_SIZE = 'a size such as "8G", "512M" or "infinity"'
MIB_TEXT = 'a size such as "8G" or "500M"'
_PERCENT = 'a percentage such as "50%"'
AMOUNT_TEXT = 'a number such as 500, "10k" or "1.5M"'
PIXELS_TEXT = 'a number of pixels such as "8MP" or "1920x1080"'
_CPUS = 'a CPU list such as "0-3,8"'
_DURATION = 'a duration such as "90s", "15m", "1h30m" or "infinity"'

_IEC = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_SI = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}

_US = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_US |= {"w": 7 * _US["d"], "y": 31_557_600 * 10**6}  # systemd's year has 365.25 days
_DURATION_WORDS = {
    "usec": "us", "µs": "us", "msec": "ms", "sec": "s", "second": "s", "seconds": "s", "min": "m",
    "minute": "m", "minutes": "m", "hr": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "week": "w",
    "weeks": "w", "year": "y", "years": "y",
}  # fmt: skip


class QuantityError(ValueError):
    """A text is not the expected quantity; the message is one line, for the user."""


def _refuse(text: str, expected: str, why: str = "") -> QuantityError:
    shown = text if len(text) <= 40 else text[:37] + "..."
    reason = f": {why}" if why else ""
    return QuantityError(f"expected {expected}, not {shown!r}{reason}")


def _number(text: str, start: int, full: str, expected: str) -> tuple[int, int, int]:
    """Read ``12`` or ``12.5`` at ``start``; returns (125, 10, position after), exact unlike a float."""
    rest = text[start:].lstrip(_DIGITS)
    whole, fraction = text[start : len(text) - len(rest)], ""
    if not whole:
        raise _refuse(full, expected, "it cannot be negative" if rest.startswith("-") else "")
    if rest.startswith("."):
        after = rest[1:].lstrip(_DIGITS)
        fraction, rest = rest[1 : len(rest) - len(after)], after
        if not fraction:
            raise _refuse(full, expected)
    if len(whole) + len(fraction) > _LONGEST:
        raise _refuse(full, expected, "the number is absurdly long")
    return int(whole + fraction), 10 ** len(fraction), len(text) - len(rest)


def parse_size(text: str, *, base: int = 1024, what: str = _SIZE) -> int:
    """A number of bytes (or of operations) from ``8G``, ``1.5GiB``, ``512``; ``infinity`` is INFINITY.

    K, M, G, T, P, E count in ``base`` (1024 as systemd's memory limits, 1000 as its IO limits), KiB, MiB, ...
    always in 1024. ``GB`` and ``Gb`` mean different things to different people and are refused. ``what`` is
    the error's description of the expected text.
    """
    stripped = text.strip()
    if stripped == "infinity":
        return INFINITY
    mantissa, divisor, end = _number(stripped, 0, text, what)
    unit = stripped[end:].strip()
    factor = _size_factor(unit, base)
    if factor is None:
        why = f"unknown unit {unit!r:.20}"
        if unit[:1].upper() in _IEC and unit[1:] in ("B", "b"):
            why = f'"{unit}" is ambiguous, write "{unit[0].upper()}" or "{unit[0].upper()}iB"'
        raise _refuse(text, what, why)
    if factor == 1 and divisor != 1:
        raise _refuse(text, what, "bytes cannot be fractional")
    value = mantissa * factor // divisor
    if value >= _TOO_BIG:
        raise _refuse(text, what, "it is absurdly large")
    return value


def parse_mib(text: str) -> int:
    """A size in whole MiB, rounded up: ``8G`` is 8192. A bare number could mean bytes or MiB: refused."""
    stripped = text.strip()
    if stripped == "infinity":
        raise _refuse(text, MIB_TEXT)
    size = parse_size(text, what=MIB_TEXT)
    if size and stripped[-1] in _DIGITS:
        unit = "G" if size < _FEWEST_MIB else "M"
        raise _refuse(text, MIB_TEXT, f'the unit is missing, write "{stripped}{unit}"')
    return -(-size >> 20)


def _size_factor(unit: str, base: int) -> int | None:
    if unit in ("", "B"):
        return 1
    letter = unit[0].upper()
    if len(unit) == 1:
        return (_IEC if base == 1024 else _SI).get(letter)
    return _IEC.get(letter) if unit[1:] == "iB" else None


def parse_amount(text: str) -> float:
    """A plain number from ``500``, ``0.5``, ``10k``, ``1.5M``; k and M count in 1000."""
    stripped = text.strip()
    mantissa, divisor, end = _number(stripped, 0, text, AMOUNT_TEXT)
    unit = stripped[end:].strip()
    factor = {"": 1, "k": 1000, "K": 1000, "M": 10**6}.get(unit)
    if factor is None:
        raise _refuse(text, AMOUNT_TEXT, f"unknown unit {unit!r:.20}")
    value = mantissa * factor / divisor
    if value >= _TOO_BIG:
        raise _refuse(text, AMOUNT_TEXT, "it is absurdly large")
    return value


def parse_pixels(text: str) -> int:
    """A number of pixels from ``8MP``, ``8.3 MP``, ``1920x1080``; a bare number could mean MP: refused."""
    stripped = text.strip()
    width, times, height = stripped.partition("x")
    if times and all(part.isascii() and part.isdigit() and len(part) < _LONGEST for part in (width, height)):
        value, rest = int(width) * int(height), 0
    else:
        mantissa, divisor, end = _number(stripped, 0, text, PIXELS_TEXT)
        unit = stripped[end:].strip()
        if unit not in ("MP", "GP"):
            why = f"unknown unit {unit!r:.20}" if unit else f'the unit is missing, write "{stripped}MP"'
            raise _refuse(text, PIXELS_TEXT, why)
        value, rest = divmod(mantissa * (10**6 if unit == "MP" else 10**9), divisor)
    if rest:
        raise _refuse(text, PIXELS_TEXT, "pixels cannot be fractional")
    if value >= _TOO_BIG:
        raise _refuse(text, PIXELS_TEXT, "it is absurdly large")
    return value


def size_text(value: int) -> str:
    """The shortest exact spelling of a number of bytes: ``24G``, ``1536M``, ``infinity``."""
    if value == INFINITY:
        return "infinity"
    for letter in "EPTGMK":
        if value and value % _IEC[letter] == 0:
            return f"{value // _IEC[letter]}{letter}"
    return str(value)


def format_size(value: int | None) -> str:
    """A number of bytes for display: ``24.0G``, ``512B``, ``infinity``, and ``-`` if unknown."""
    if value is None:
        return "-"
    if value == INFINITY:
        return "infinity"
    amount, letter = float(value), "B"
    for following in "KMGTPE":
        # 1023.95 would be shown as 1024.0
        if amount < 1023.95:
            break
        amount, letter = amount / 1024, following
    return f"{value}B" if letter == "B" else f"{amount:.1f}{letter}"


def format_mib(mib: int | None) -> str:
    """MiB for display: ``8.0G``, ``0``, and ``-`` if unknown. In a column all have one decimal."""
    return "-" if mib is None else format_size(mib << 20) if mib else "0"


def short_mib(mib: int | None) -> str:
    """MiB in a sentence: ``8G``, ``1.5G``, ``0``."""
    return format_mib(mib).replace(".0", "")


def parse_percent(text: str, *, most: int = 100) -> int:
    """Hundredths of a percent, as systemd counts them: ``37.5%`` is 3750. ``most`` is in percent."""
    expected = _PERCENT if most <= 100 else 'a percentage of one CPU such as "300%"'
    stripped = text.strip()
    mantissa, divisor, end = _number(stripped, 0, text, expected)
    if stripped[end:].strip() != "%":
        why = 'the "%" is missing' if end == len(stripped) else ""
        raise _refuse(text, expected, why)
    if mantissa * 100 % divisor:
        raise _refuse(text, expected, "at most two digits after the point")
    value = mantissa * 100 // divisor
    if value > most * 100:
        raise _refuse(text, expected, f"more than {most}%")
    return value


def percent_text(value: int) -> str:
    """The exact spelling of hundredths of a percent: 3750 is ``37.5%``."""
    whole, rest = divmod(value, 100)
    fraction = f".{rest:02d}".rstrip("0") if rest else ""
    return f"{whole}{fraction}%"


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPU (or NUMA node) numbers from ``0-3,8`` or ``0 1 2``: sorted, each once."""
    bits = 0  # not a set: a text full of large ranges would keep its reader busy for a second
    for part in text.replace(",", " ").split():
        low, dash, high = part.partition("-")
        first = _index(low, text)
        last = _index(high, text) if dash else first
        if last < first:
            raise _refuse(text, _CPUS, f'"{part}"is in descending order')
        bits |= (1 << last + 1) - (1 << first)
    if not bits:
        raise _refuse(text, _CPUS)
    return _set_bits(bits)


def _index(text: str, full: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _LONGEST:
        raise _refuse(full, _CPUS)
    value = int(text)
    if value > MAX_CPU:
        raise _refuse(full, _CPUS, f"no kernel has a CPU {value}")
    return value


def format_cpus(cpus: Iterable[int]) -> str:
    """``0-3,8`` from CPU numbers; the empty text from none."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def cpus_to_mask(cpus: Iterable[int]) -> bytes:
    """The bit mask that systemd's AllowedCPUs takes on D-Bus: CPU 0 is the lowest bit of byte 0."""
    bits = 0
    for cpu in cpus:
        bits |= 1 << cpu
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def mask_to_cpus(mask: bytes) -> tuple[int, ...]:
    """The CPU numbers in a mask of :func:`cpus_to_mask`."""
    return _set_bits(int.from_bytes(mask, "little"))


def _set_bits(bits: int) -> tuple[int, ...]:
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def parse_duration(text: str) -> int:
    """Microseconds from ``90`` (seconds), ``500ms``, ``1h30m``, ``2 days``; ``infinity`` is INFINITY.

    Units must come largest first and once each: ``30m1h`` and ``1h30`` are probably typos.
    """
    stripped = text.strip()
    if stripped == "infinity":
        return INFINITY
    total, position, smallest = 0, 0, _TOO_BIG
    while position < len(stripped):
        mantissa, divisor, end = _number(stripped, position, text, _DURATION)
        position = end
        while position < len(stripped) and stripped[position] not in _DIGITS:
            position += 1
        word = stripped[end:position].strip()
        unit = _duration_unit(word, text, alone=end == len(stripped) and smallest == _TOO_BIG)
        if unit >= smallest:
            raise _refuse(text, _DURATION, "units must come largest first, each once")
        smallest = unit
        total += mantissa * unit // divisor
    if not stripped:
        raise _refuse(text, _DURATION)
    if total > LONGEST_US:
        raise _refuse(text, _DURATION, "it is absurdly long")
    return total


def _duration_unit(word: str, full: str, *, alone: bool) -> int:
    if not word:
        if not alone:
            raise _refuse(full, _DURATION, "the last number has no unit")
        return _US["s"]
    unit = _US.get(_DURATION_WORDS.get(word, word))
    if unit is None:
        # systemd reads "M" as months.
        why = 'minutes are written "m"' if word == "M" else f"unknown unit {word!r:.20}"
        raise _refuse(full, _DURATION, why)
    return unit


def duration_text(value: int) -> str:
    """The exact spelling of a number of microseconds: ``1h30m``, ``2s500ms``, ``infinity``."""
    if value == INFINITY:
        return "infinity"
    if value and value % _US["y"] == 0:
        return f"{value // _US['y']}y"
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, value = divmod(value, _US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_duration(seconds: float | None) -> str:
    """A duration for display, two units at most: ``2.3s``, ``15m``, ``1h30m``; None is ``unlimited``."""
    if seconds is None:
        return "unlimited"
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if round(seconds * 1000) < 1000:
        return f"{round(seconds * 1000)}ms" if seconds else "0s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}s".replace(".0s", "s")
    if round(seconds) < 3600:
        return _two_units(round(seconds), 60, "m", "s")
    if round(seconds / 60) < 24 * 60:
        return _two_units(round(seconds / 60), 60, "h", "m")
    return _two_units(round(seconds / 3600), 24, "d", "h")


def format_estimate(seconds: float) -> str:
    """As :func:`format_duration`, in whole minutes once it is more than a few seconds."""
    step = 1 if seconds < 90 else 60
    return format_duration(float(round(seconds / step) * step))


def _two_units(count: int, per_large: int, large: str, small: str) -> str:
    whole, rest = divmod(count, per_large)
    return f"{whole}{large}{rest}{small}" if rest else f"{whole}{large}"


def parse_weight(text: str) -> int:
    """A cgroup weight: 1 to 10000; the kernel's default is 100."""
    return parse_count(text, lowest=1, highest=10000, what='a weight from 1 to 10000 such as "50"')


def parse_count(text: str, *, lowest: int, highest: int, what: str) -> int:
    """A whole number from ``lowest`` to ``highest``; ``what`` is the error's description of it."""
    stripped = text.strip()
    if stripped.startswith("-"):
        raise _refuse(text, what, "it cannot be negative")
    if not (stripped.isascii() and stripped.isdigit()):
        raise _refuse(text, what)
    value = int(stripped) if len(stripped) <= _LONGEST else highest + 1
    if not lowest <= value <= highest:
        raise _refuse(text, what, f"it must be {lowest} to {highest}")
    return value


def parse_integer(text: str, *, lowest: int, highest: int, what: str) -> int:
    """A whole number that may be negative; ``what`` is the error's description of it."""
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not (digits.isascii() and digits.isdigit()):
        raise _refuse(text, what)
    value = int(stripped) if len(digits) <= _LONGEST else highest + 1
    if not lowest <= value <= highest:
        raise _refuse(text, what)
    return value


def parse_bool(text: str) -> bool:
    """systemd's spellings of yes and no, in any case."""
    word = text.strip().lower()
    if word in ("1", "yes", "y", "true", "t", "on"):
        return True
    if word in ("0", "no", "n", "false", "f", "off"):
        return False
    raise _refuse(text, '"yes" or "no"')
