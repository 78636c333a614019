"""What a destination changes in the command line of a job. Pure.

Only whole words are looked at: an option is ``--model X`` or ``--model=X`` (a single dash will do), before a
``--``. Not recognised are ``-mX``, which could be several short options in one word, and abbreviations.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import Destination


def command_for(destination: Destination, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the destination's ``replace``, ``prepend`` and ``args``, in this order.

    ``prepend`` goes right after the command's name and ``args`` to the end. If ``args`` begins with an
    option, it goes before a ``--``, after which nothing is an option.
    """
    words = command[1:]
    for option, value in destination.replace:
        words = _replaced(words, option, value)
    end = len(words)
    if destination.args[:1] and destination.args[0][:1] == "-" and "--" in words:
        end = words.index("--")
    return (*command[:1], *destination.prepend, *words[:end], *destination.args, *words[end:])


def _replaced(words: tuple[str, ...], option: str, value: str | None) -> tuple[str, ...]:
    """The words with the option's value exchanged wherever it stands; None takes the option away.

    Taken away are ``--fp16`` and ``--fp16=X``; the word after it too only if ``option`` ends in "=", for a
    flag has no value.
    """
    name = option.rstrip("=")
    found: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            found += words[position:]
            break
        position += 1
        if word == name and value is not None and position < len(words):
            found += (word, value)
            position += 1
        elif word == name and value is None:
            position += option.endswith("=")
        elif word.startswith(f"{name}="):
            if value is not None:
                found.append(f"{name}={value}")
        else:
            found.append(word)
    return tuple(found)
