"""The times that people name, in seconds since 1970. Pure: the local time zone is all that they depend on."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from slicer.quantity import INFINITY, QuantityError, parse_duration

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COMING = (
    'expected a duration such as "90m", or a time such as "22:00", "tomorrow", "monday 8:00" or '
    '"2026-11-20 14:00"'
)
_PAST = (
    'expected a duration such as "90s" or "7d", or a time such as "today", "yesterday", "monday", '
    '"2026-11-20" or "2026-11-20 14:00"'
)


def past(text: str, now: float) -> float:
    """The time that a person's words mean, as ``now`` is.

    A duration counts back from now. A day is that of local time, and means its beginning: "monday" is the
    last one, perhaps today. Where the clock skips a time, the first one after it is meant; of a time that
    comes twice, the first. Raises ValueError, whose message is one line for the user.
    """
    try:
        return now - parse_duration(text) / 1e6
    except QuantityError:
        pass  # it may be a time
    word = text.strip().lower()
    today = datetime.combine(datetime.fromtimestamp(now), time())
    ago = {day: (today.weekday() - number) % 7 for number, day in enumerate(_DAYS)}
    ago |= {"today": 0, "yesterday": 1}
    if word in ago:
        return (today - timedelta(days=ago[word])).timestamp()
    try:
        return datetime.fromisoformat(word.upper()).timestamp()
    except (ValueError, OverflowError) as error:
        raise _no_moment(_PAST, text) from error


def _no_moment(expected: str, text: str) -> ValueError:
    return ValueError(f"{expected}, not {text if len(text) <= 40 else f'{text[:37]}...'!r}")


def coming(text: str, now: float) -> float:
    """The next time after ``now`` that is called so.

    A duration counts from now. "22:00" is today or tomorrow, "monday" the beginning of the next Monday. Where
    the clock skips a time, the first one after it is meant; of a time that comes twice, the first. Raises
    ValueError, whose message is one line for the user.
    """
    word = text.strip().lower()
    try:
        length = parse_duration(word)
    except QuantityError:
        found = _dated(word, datetime.fromtimestamp(now)) if word else None
    else:
        if length != INFINITY and not word.isdigit():  # 8 may be seconds, or eight o'clock
            return now + length / 1e6
        found = None
    if found is None:
        raise _no_moment(_COMING, text)
    first, period_days = found
    while first.timestamp() <= now and period_days:
        first += timedelta(days=period_days)
    if first.timestamp() <= now:
        raise ValueError(f"{text} has passed")
    return first.timestamp()


def _dated(word: str, now: datetime) -> tuple[datetime, int] | None:
    """The time that is meant, on the first day on which it may be; and after how many days it comes again."""
    day, _, clock = word.partition(" ")
    if day not in (*_DAYS, "today", "tomorrow"):
        day, clock = "", word
    at, date = _clock(clock) if clock else time(), now.date()
    if at is None:
        try:
            return (datetime.fromisoformat(word.upper()), 0) if not day else None
        except ValueError:
            return None
    if day in _DAYS:
        return datetime.combine(date + timedelta(days=(_DAYS.index(day) - date.weekday()) % 7), at), 7
    if day == "tomorrow":
        return datetime.combine(date + timedelta(days=1), at), 0
    return datetime.combine(date, at), 0 if day else 1


def _clock(text: str) -> time | None:
    """As in "8:00" and "22:00:30"."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    hour, minute, second = map(int, (*parts, "0")[:3])
    try:
        return time(hour, minute, second)
    except ValueError:
        return None


def words(at: float, now: float) -> str:
    """A coming time for people, as in "at 22:00", "tomorrow at 06:00" and "on 2026-12-24 at 18:00"."""
    meant = datetime.fromtimestamp(at)
    clock = meant.strftime("at %H:%M:%S" if meant.second else "at %H:%M")
    days = (meant.date() - datetime.fromtimestamp(now).date()).days
    if days == 0:
        return clock
    if days == 1:
        return f"tomorrow {clock}"
    if 0 < days < len(_DAYS):
        return f"on {_DAYS[meant.weekday()].capitalize()} {clock}"
    return f"on {meant:%Y-%m-%d} {clock}"
