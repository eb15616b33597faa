"""Parameters of functions, inspected once: inspection for every call costs more than most calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Functions of environments and rubrics; the cache is emptied now and then, in case an environment makes new ones for every call.
REMEMBERED_MAX = 10_000

#: None: any name.
taken: dict[Any, frozenset[str] | None] = {}


def remembered(memory: dict[Any, T], func: Callable[..., Any], make: Callable[[], T]) -> T:
    try:
        return memory[func]
    except KeyError:
        if len(memory) >= REMEMBERED_MAX:
            memory.clear()
        memory[func] = made = make()
        return made
    except TypeError:  # not hashable
        return make()


def names_taken(func: Callable[..., Any]) -> frozenset[str] | None:
    parameters = inspect.signature(func).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if takes_all else frozenset(parameters)


def arguments_for(func: Callable[..., Any], objects: dict[str, Any]) -> dict[str, Any]:
    """The entries of `objects` that `func` takes."""
    names = remembered(taken, func, lambda: names_taken(func))
    return objects if names is None else {key: value for key, value in objects.items() if key in names}
