"""The questions that can be asked of a function: what a call runs, and how.

Each takes the arguments of a call, finds what that call would run, and runs nothing of
it (but `verify`, which compares two runs). The answers are made in `inspect`.

Start reading at `Inspected.explain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec

if TYPE_CHECKING:
    from tapejit.ir.graph import Graph
    from tapejit.targets.cpu.kernel_report import KernelReport
    from tapejit.tracing.function import Function
    from tapejit.tracing.inspect import Explanation

P = ParamSpec("P")


class Inspected(Generic[P]):
    """The part of a `Function` that answers questions.

    >>> import tapejit as tj
    >>> double = tj.function(lambda x: x + x)
    >>> [x.op.name for x in double.graph(tj.ones(3)).nodes]
    ['add']
    """

    def _asked(self) -> Function[..., Any]:
        from tapejit.tracing.function import Function

        assert isinstance(self, Function)
        return self

    def graph(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """The Graph that a call with these arguments runs; nothing is run.

        A call of a new kind is traced. Without arguments: the only Graph there is.

        >>> import tapejit as tj
        >>> @tj.function
        ... def scaled(x, times):
        ...     return x * times
        >>> scaled.graph(tj.ones(3), 2) is scaled.graph()
        True
        """
        from tapejit.tracing import inspect

        return inspect.graph(self._asked(), args, kwargs)

    def kernels(self, *args: P.args, **kwargs: P.kwargs) -> list[KernelReport]:
        """The kernels that a call with these arguments runs, in numbers.

        Nothing is run. Without native code they are what it would be.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> square.kernels(tj.ones(1000))
        [<kernel_0: i<1000 by 16>; mul; reads 4.0 kB, writes 4.0 kB, 1.0 kflop>]
        """
        from tapejit.tracing import inspect

        return inspect.inside(self._asked(), args, kwargs).kernels

    def source(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The kernels of a call as Python that can be read, run and stepped through.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> namespace = {}
        >>> exec(square.source(tj.ones(3)), namespace)
        >>> namespace["run"](tj.asarray([1.0, 2.0, 3.0]).numpy())
        [array([1., 4., 9.], dtype=float32)]
        """
        from tapejit.tracing import inspect

        return inspect.inside(self._asked(), args, kwargs).source()

    def llvm(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The kernels of a call in LLVM's language.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> "fmul <16 x float>" in square.llvm(tj.ones(1000))
        True
        """
        from tapejit.tracing import inspect

        return inspect.inside(self._asked(), args, kwargs).llvm()

    def asm(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The kernels of a call as instructions of this processor.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> "ret" in square.asm(tj.ones(1000))
        True
        """
        from tapejit.tracing import inspect

        return inspect.inside(self._asked(), args, kwargs).asm()

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """A report on what a call with these arguments runs; nothing is run.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> square.explain(tj.ones(3)).ops
        {'mul': 1}
        """
        from tapejit.tracing.inspect import Explanation, asked

        function = self._asked()
        return Explanation(function, *asked(function, args, kwargs))

    def verify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the body eagerly and traced, from the same state, and compare.

        Results and the values of variables have to agree, else `tj.Disagreement` is
        raised. Variables and generators are afterwards as they were before.

        >>> import tapejit as tj
        >>> tj.function(tj.tanh).verify(tj.ones(3))
        """
        from tapejit.tracing.verify import verify

        verify(self._asked(), args, kwargs)
