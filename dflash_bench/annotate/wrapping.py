"""A function inside a range: plain, method, static or class method, coroutine, generator.

A coroutine or generator is a range each time it runs, from being resumed to its next suspension: what it waits for is
not its time, and ranges of one thread stay nested whatever the event loop does in between.

Price: between two calls an engine's step has pushed what the wrapper touches out of the processor's caches, so that a
frame of Python costs microseconds where it would cost a tenth of one in a loop. A range is one frame and a look at
which threads have it open; a condition adds two, whatever the number of ranges among which it chooses.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
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


Pick = Callable[..., NamedRange | None]
"""Over the arguments of a call: the range that it opens."""


def choice(spans: Sequence[NamedRange], ask: Function, complain: _Complaint) -> Pick:
    """Which range a call opens: of several the one that ``ask`` names, of one that one, if the answer is true.

    ``ask`` gets the call's arguments. If it raises, that is said once, and the call opens none from then on.
    """
    only = spans[0] if len(spans) == 1 else None
    by_name = {span.name: span for span in spans}

    def pick(*args: Any, **kwargs: Any) -> NamedRange | None:
        nonlocal ask
        try:
            answer = ask(*args, **kwargs)
            return by_name.get(answer) if only is None else only if answer else None
        except Exception as error:  # the program must not die of what a table says
            complain(f"{type(error).__name__}: {error}")
            ask = _nothing
            return None

    return pick


def _nothing(*_: Any, **__: Any) -> None:
    return None


def around(function: Function, span: NamedRange, pick: Pick | None) -> Function:
    """The function inside the range, or inside what ``pick`` says, from its call to its return."""
    if inspect.iscoroutinefunction(function):
        return _around_coroutine(function, pick or _always(span))
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(function, pick or _always(span))
    if inspect.isgeneratorfunction(function):
        return _around_generator(function, pick or _always(span))
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

    if pick is None:
        return always

    @functools.wraps(function)
    def sometimes(*args: Any, **kwargs: Any) -> Any:
        thread, picked = get_ident(), pick(*args, **kwargs)
        if picked is None or thread in picked.threads:
            return function(*args, **kwargs)
        picked.threads.add(thread)
        picked.push()
        try:
            return function(*args, **kwargs)
        finally:
            picked.pop()
            picked.threads.discard(thread)

    return sometimes


def _always(span: NamedRange) -> Pick:
    return lambda *_, **__: span


def _wanted(pick: Pick, args: Any, kwargs: Any) -> NamedRange | None:
    """What a call opens on this thread."""
    span = pick(*args, **kwargs)
    return None if span is None or get_ident() in span.threads else span


def _around_coroutine(function: Function, pick: Pick) -> Function:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        if (span := _wanted(pick, args, kwargs)) is None:
            return await function(*args, **kwargs)
        return await _in_pieces(function(*args, **kwargs).__await__(), span)

    return inner


def _around_generator(function: Function, pick: Pick) -> Function:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if (span := _wanted(pick, args, kwargs)) is None:
            return (yield from function(*args, **kwargs))
        return (yield from _pieces(function(*args, **kwargs), span))

    return inner


def _around_async_generator(function: Function, pick: Pick) -> Function:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        source = function(*args, **kwargs)
        span = _wanted(pick, args, kwargs)
        resume, argument = source.asend, None
        while True:
            try:
                value = await (resume(argument) if span is None else _in_pieces(resume(argument).__await__(), span))
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

    def open(self) -> bool:
        """Close it if it is still open from before, and open it anew; whether this has opened it."""
        self.close()
        thread = get_ident()
        if thread in self.span.threads:
            return False
        self.threads.add(thread)
        self.span.start()
        return True

    def close(self) -> None:
        thread = get_ident()
        if thread in self.threads:
            self.threads.discard(thread)
            self.span.stop()


def until_next_call(function: Function, hold: Hold, pick: Pick | None) -> Function:
    """The range from this call to the next one, whether that opens it again or not."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        hold.close()
        if pick is None or pick(*args, **kwargs):
            hold.open()
        return function(*args, **kwargs)

    return inner


def opening(function: Function, hold: Hold, pick: Pick | None, ends_if: Pick | None) -> Function:
    """The function opens the range and `closing`, around another one, closes it.

    A call that raises closes it itself, and one of which ``ends_if(result, …)`` picks something.
    """

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if (pick is not None and pick(*args, **kwargs) is None) or not hold.open():
            return function(*args, **kwargs)
        is_done = True
        try:
            result = function(*args, **kwargs)
            is_done = ends_if is not None and ends_if(result, *args, **kwargs) is not None
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
