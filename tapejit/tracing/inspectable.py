"""The questions that can be asked of a function: what a call runs, and how.

Each takes the arguments of a call, finds what that call would run, and runs nothing of
it (but `verify`, which compares two runs). The answers are made in `inspect`.

Start reading at `Inspected.explain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from tapejit.base.errors import ArgumentError

if TYPE_CHECKING:
    from tapejit.ir.graph import Graph
    from tapejit.runtime.executable_report import Inside
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

    def kernels(
        self, *args: Any, target: Any = "auto", **kwargs: Any
    ) -> list[KernelReport]:
        """The kernels that a call with these arguments runs, in numbers.

        Nothing is run. Without native code they are what it would be. `target` is where
        they are for: "cpu", "cuda" or a kind of GPU, "sm_90", whether there is one or
        not; by default where the tensors are. (If the function has a parameter of that
        name, the keyword is its.) Those of a GPU are `GPUKernelReport`s, with blocks,
        threads, registers, occupancy and predicted times.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> square.kernels(tj.ones(1000))
        [<kernel_0: i<1000 by 16>; mul; reads 4.0 kB, writes 4.0 kB, 1.0 kflop>]
        >>> square.kernels(tj.ones(1000), target="cuda")[0].launches[0].threads
        256
        """
        return self._inside(args, kwargs, target).kernels

    def source(self, *args: Any, target: Any = "auto", **kwargs: Any) -> str:
        """The kernels of a call as Python that can be read, run and stepped through.

        `target` as for `kernels`: for a GPU comments say which threads go through a
        loop.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> namespace = {}
        >>> exec(square.source(tj.ones(3)), namespace)
        >>> namespace["run"](tj.asarray([1.0, 2.0, 3.0]).numpy())
        [array([1., 4., 9.], dtype=float32)]
        >>> text = square.source(tj.ones(3), target="cuda")
        >>> print("\\n".join(text.splitlines()[3:8]))  # doctest: +ELLIPSIS
        def kernel_0(x, out):
            # tj_..._0<<<1, 32>>>(3 pointers, 0 B shared)
            for i in range(3):  # by the 32 threads of 1 block
                x_i = x[i]
                out[i] = x_i * x_i  # ...
        """
        return self._inside(args, kwargs, target).source()

    def llvm(self, *args: Any, target: Any = "auto", **kwargs: Any) -> str:
        """The kernels of a call in LLVM's language; `target` as for `kernels`.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> "fmul <16 x float>" in square.llvm(tj.ones(1000))
        True
        """
        return self._inside(args, kwargs, target).llvm()

    def asm(self, *args: Any, target: Any = "auto", **kwargs: Any) -> str:
        """The kernels of a call as instructions of this processor, or as PTX of a GPU.

        `target` as for `kernels`.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> "ret" in square.asm(tj.ones(1000))
        True
        """
        return self._inside(args, kwargs, target).asm()

    def ptx(self, *args: Any, capability: Any = "auto", **kwargs: Any) -> str:
        """The kernels of a call as PTX, whether there is a GPU or not.

        `capability` is a kind of GPU, such as "sm_80"; by default that of the device
        where the tensors are, and "sm_80" of those on the CPU. (If the function has a
        parameter of that name, the keyword is its: `asm(..., target="sm_80")` is the
        same.) What the host performs is in comments.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> text = square.ptx(tj.ones(1000), capability="sm_90")
        >>> ".target sm_90" in text, "mul.rn.f32" in text
        (True, True)
        """
        from tapejit.tracing import inspect
        from tapejit.tracing.inside_of_call import AUTO

        function = self._asked()
        wanted = inspect.own_keyword(function, kwargs, "capability", capability)
        target = "cuda" if wanted == AUTO else wanted
        if not target.startswith(("cuda", "sm_")):
            raise ArgumentError(
                f"a capability is written as 'sm_80', not {capability!r}"
            )
        return inspect.inside(function, args, kwargs, target).asm()

    def _inside(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any
    ) -> Inside:
        from tapejit.tracing import inspect

        function = self._asked()
        target = inspect.own_keyword(function, kwargs, "target", target)
        return inspect.inside(function, args, kwargs, target)

    def explain(self, *args: Any, target: Any = "auto", **kwargs: Any) -> Explanation:
        """A report on what a call with these arguments runs; nothing is run.

        `target` as for `kernels`.

        >>> import tapejit as tj
        >>> square = tj.function(lambda x: x * x)
        >>> square.explain(tj.ones(3)).ops
        {'mul': 1}
        >>> sorted(square.explain(tj.ones(3), target="cuda").predicted)
        ['A100', 'H100']
        """
        from tapejit.tracing import inspect

        function = self._asked()
        target = inspect.own_keyword(function, kwargs, "target", target)
        asked = inspect.asked(function, args, kwargs)
        return inspect.Explanation(function, asked, target)

    def verify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the body eagerly and traced, from the same state, and compare.

        Results and the values of variables have to agree, else `tj.Disagreement` is
        raised. Variables and generators are afterwards as they were before.

        >>> import tapejit as tj
        >>> tj.function(tj.tanh).verify(tj.ones(3))
        """
        from tapejit.tracing.verify import verify

        verify(self._asked(), args, kwargs)
