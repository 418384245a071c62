"""A function inside a range: plain, method, static or class method, coroutine, generator.

A coroutine or generator is a range each time it runs, from being resumed to its next suspension: what it waits for is
not its time, and ranges of one thread stay nested whatever the event loop does in between.

Price: what an unannotated call pays is one more Python frame; a range adds the two calls into the sink, bound to their
name beforehand, and a look at which threads have it open.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

Function = Callable[..., Any]
_Complaint = Callable[[str], None]


@dataclass(slots=True, eq=False)
class NamedRange:
    """The range of one name, whatever functions open it; a thread has it open at most once."""

    name: str
    push: Callable[[], object]
    pop: Callable[[], object]
    threads: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Open it on this thread, unless it is."""
        thread = get_ident()
        if thread not in self.threads:
            self.threads.add(thread)
            self.push()

    def stop(self) -> None:
        """Close it, if this thread has it open."""
        thread = get_ident()
        if thread in self.threads:
            self.pop()
            self.threads.discard(thread)


@dataclass(frozen=True, slots=True)
class CallGuard:
    """Whether a call opens its range. One that raises is said once, and from then on never fulfilled."""

    function: Function
    complain: _Complaint
    broken: list[str] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        if self.broken:
            return False
        try:
            return bool(self.function(*args, **kwargs))
        except Exception as error:  # the program must not die of what a table says
            self.broken.append(f"{type(error).__name__}: {error}")
            self.complain(self.broken[0])
            return False


def around(function: Function, span: NamedRange, when: CallGuard | None) -> Function:
    """The function inside the range, from its call to its return."""
    if inspect.iscoroutinefunction(function):
        return _around_coroutine(function, span, when)
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(function, span, when)
    if inspect.isgeneratorfunction(function):
        return _around_generator(function, span, when)
    push, pop, threads = span.push, span.pop, span.threads
    opened, closed = threads.add, threads.discard

    @functools.wraps(function)
    def always(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in threads:
            return function(*args, **kwargs)
        opened(thread)
        push()
        try:
            return function(*args, **kwargs)
        finally:
            pop()
            closed(thread)

    if when is None:
        return always

    @functools.wraps(function)
    def sometimes(*args: Any, **kwargs: Any) -> Any:
        return always(*args, **kwargs) if when(*args, **kwargs) else function(*args, **kwargs)

    return sometimes


def _wanted(span: NamedRange, when: CallGuard | None, args: Any, kwargs: Any) -> bool:
    return get_ident() not in span.threads and (when is None or when(*args, **kwargs))


def _around_coroutine(function: Function, span: NamedRange, when: CallGuard | None) -> Function:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        if not _wanted(span, when, args, kwargs):
            return await function(*args, **kwargs)
        return await _in_pieces(function(*args, **kwargs).__await__(), span)

    return inner


def _around_generator(function: Function, span: NamedRange, when: CallGuard | None) -> Function:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if not _wanted(span, when, args, kwargs):
            return (yield from function(*args, **kwargs))
        return (yield from _pieces(function(*args, **kwargs), span))

    return inner


def _around_async_generator(function: Function, span: NamedRange, when: CallGuard | None) -> Function:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        source = function(*args, **kwargs)
        is_wanted = _wanted(span, when, args, kwargs)
        resume, argument = source.asend, None
        while True:
            try:
                value = await (_in_pieces(resume(argument).__await__(), span) if is_wanted else resume(argument))
            except StopAsyncIteration:
                return
            try:
                resume, argument = source.asend, (yield value)
            except BaseException as error:  # whatever is thrown in belongs to the function
                resume, argument = source.athrow, error

    return inner


def _pieces(source: Generator[Any, Any, Any], span: NamedRange) -> Generator[Any, Any, Any]:
    """The same generator, each of its runs inside the range."""
    resume, argument = source.send, None
    while True:
        is_outermost = get_ident() not in span.threads
        if is_outermost:
            span.start()
        try:
            value = resume(argument)
        except StopIteration as end:
            return end.value
        finally:
            if is_outermost:
                span.stop()
        try:
            resume, argument = source.send, (yield value)
        except BaseException as error:  # whatever is thrown in belongs to the function
            resume, argument = source.throw, error


_in_pieces: Callable[..., Awaitable[Any]] = types.coroutine(_pieces)


@dataclass(slots=True, eq=False)
class Hold:
    """A range that outlives the call that opens it. What another function holds open, it neither opens nor closes."""

    span: NamedRange
    threads: set[int] = field(default_factory=set)

    def open(self) -> None:
        """Close it if it is still open from before, and open it anew."""
        self.close()
        thread = get_ident()
        if thread not in self.span.threads:
            self.threads.add(thread)
            self.span.start()

    def close(self) -> None:
        thread = get_ident()
        if thread in self.threads:
            self.threads.discard(thread)
            self.span.stop()


def until_next_call(function: Function, span: NamedRange, when: CallGuard | None) -> Function:
    """The range from this call to the next one, whether that opens it again or not."""
    hold = Hold(span)

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        hold.close()
        if when is None or when(*args, **kwargs):
            hold.open()
        return function(*args, **kwargs)

    return inner


def opening(function: Function, hold: Hold, when: CallGuard | None, ends_if: CallGuard | None) -> Function:
    """The function opens the range and `closing`, around another one, closes it.

    A call that raises closes it itself, and one of which ``ends_if(result, …)`` is true.
    """

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if when is not None and not when(*args, **kwargs):
            return function(*args, **kwargs)
        hold.open()
        is_done = True
        try:
            result = function(*args, **kwargs)
            is_done = ends_if is not None and ends_if(result, *args, **kwargs)
            return result
        finally:
            if is_done:
                hold.close()

    return inner


def closing(function: Function, hold: Hold) -> Function:
    """The function; as it returns, the range that `opening` opened is closed."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            hold.close()

    return inner


def before(function: Function, action: Function, complain: _Complaint) -> Function:
    """The function; before it runs, the action gets its arguments."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            action(*args, **kwargs)
        except Exception as error:  # the program must not die of what a table says
            complain(f"{type(error).__name__}: {error}")
        return function(*args, **kwargs)

    return inner


def after(function: Function, action: Function, complain: _Complaint) -> Function:
    """The function; once it has returned, the action gets its arguments."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        try:
            action(*args, **kwargs)
        except Exception as error:  # the program must not die of what a table says
            complain(f"{type(error).__name__}: {error}")
        return result

    return inner
