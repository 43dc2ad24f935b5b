"""Former names of arguments: refused, with the name of now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def former(**names: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Of a function: former names of its arguments, each with its name of now."""

    def of(call: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(call)
        def checked(*arguments: _P.args, **options: _P.kwargs) -> _T:
            for name, now in names.items():
                if name in options:
                    raise TypeError(f"{call.__qualname__}(): {name} is named {now}; sizes are in "
                                    "bytes, times in seconds")
            return call(*arguments, **options)

        return checked

    return of
