"""Run a Python function as a job: its source and its arguments travel in the job's script.

The function is self-contained: it imports what it needs itself. Its return value does not come back, since a
job has no way to its submitter but its log; see ADR 0049.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import symtable
import textwrap
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec, TypeVar, Unpack

from fairway.client.client import Client, JobHandle
from fairway.client.requests import SpecFields, job_spec
from fairway.model.errors import PermanentError
from fairway.wire.jobs import JobSpec

P = ParamSpec("P")
R = TypeVar("R")

_SCRIPT = """\
#!/usr/bin/env {python}
from __future__ import annotations

{source}

if __name__ == "__main__":
    import json

    {name}(**json.loads({arguments!r}))
"""


class FunctionJob(Generic[P, R]):
    """A function that can be submitted as a job. Calling it runs it here, as without the decorator."""

    def __init__(
        self, function: Callable[P, R], client: Client | None, python: str, fields: SpecFields
    ) -> None:
        self._function = function
        self._client = client
        self._python = python
        self._fields = fields
        self._source = _source_of(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<function {self.__name__} as a job: {self.__name__}.submit(…)>"

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """Build the job, for `client.submit` or `client.dry_run`."""
        script = _SCRIPT.format(
            python=self._python,
            source=self._source,
            name=self.__name__,
            arguments=self._arguments(*args, **kwargs),
        )
        fields: SpecFields = {"name": self.__name__, **self._fields}
        return job_spec(script, **fields)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Submit the job and return a handle on it. Many at once:  client.submit([f.spec(1), f.spec(2)])"""
        client = self._client = self._client or Client()
        (submitted,) = client.submit(self.spec(*args, **kwargs))
        return JobHandle(client, submitted)

    def _arguments(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Encode the arguments as JSON, by name. Raises PermanentError if they would arrive changed."""
        given = dict(inspect.signature(self._function).bind(*args, **kwargs).arguments)
        for name, value in given.items():
            try:
                same = json.loads(json.dumps(value)) == value
            except (TypeError, ValueError):
                same = False
            if not same:
                raise PermanentError(
                    "ArgumentNotJson",
                    f"the argument {name} of {self.__name__} cannot be sent as JSON: {type(value).__name__}",
                    "pass numbers, texts, lists and dictionaries with text keys; of data, pass its path",
                )
        return json.dumps(given)


def job(
    *, client: Client | None = None, python: str = "python3", **fields: Unpack[SpecFields]
) -> Callable[[Callable[P, R]], FunctionJob[P, R]]:
    """Make a function one that can be submitted as a job, with the fields of `Client.run`.

    The function imports what it needs itself, and its arguments are JSON values. Without a `client`, it is
    submitted to the server of your current context. `python` is the interpreter on the node.

        @fairway.job(gpus="A100:2", time="4h")
        def train(lr: float) -> None:
            import torch
            ...

        handle = train.submit(lr=3e-4)
    """

    def decorate(function: Callable[P, R]) -> FunctionJob[P, R]:
        return FunctionJob(function, client, python, fields)

    return decorate


def _source_of(function: Callable[P, R]) -> str:
    """Return the source of a function without its decorators. Raises PermanentError if it needs more."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        definition = tree.body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        definition = None
    if not isinstance(definition, ast.FunctionDef):
        raise PermanentError(
            "NotAFunction",
            "only the source of a function defined with def can be sent as a job",
            "define it in a file or in a cell; neither a lambda nor a coroutine will do",
        )
    kinds = {p.kind for p in inspect.signature(function).parameters.values()}
    if kinds - {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        raise PermanentError(
            "NotAFunction",
            f"{definition.name} has parameters without a name: *args, **kwargs or before a /",
            "name each parameter: they are sent by name",
        )
    definition.decorator_list = []
    source = ast.unparse(definition)
    # Annotations are not evaluated in the script either.
    table = symtable.symtable(f"from __future__ import annotations\n{source}", "job", "exec")
    outside = sorted(set(_names_from_outside(table)) - {definition.name})
    if outside:
        raise PermanentError(
            "NotSelfContained",
            f"{definition.name} uses {', '.join(outside)}, defined outside of the function",
            "import it inside the function, or pass it as an argument",
        )
    return source


def _names_from_outside(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that a program uses and does not define."""
    for symbol in table.get_symbols():
        is_global = symbol.is_global() or (table.get_type() == "module" and not symbol.is_assigned())
        if is_global and symbol.is_referenced() and not hasattr(builtins, symbol.get_name()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _names_from_outside(child)
