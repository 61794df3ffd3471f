"""A layer that attends: projections to heads, attention, and a projection back.

Names and defaults are Keras's. Inputs are [batch, steps, features]; each projection is
a `Dense` layer whose columns are those of all heads, one head after another.

Start reading at `MultiHeadAttention`.
"""

from __future__ import annotations

from typing import Any

from tapejit.array.arrangement import moveaxis
from tapejit.array.manipulation import expand_dims, reshape
from tapejit.base.errors import ArgumentError, ShapeError
from tapejit.base.public import public
from tapejit.nn import building
from tapejit.nn import functional as functions
from tapejit.nn.functional.windows import positive
from tapejit.nn.layers import Dense, Function, described
from tapejit.nn.module import Module
from tapejit.tape.generator import DEFAULT, Generator
from tapejit.tensor.dispatch import as_operand
from tapejit.tensor.tensor import Tensor


@public("tapejit.nn")
class MultiHeadAttention(Module):
    """Each step of `query` as a mixture of what `value` has at all of its steps.

    Queries, keys and values are projected to `num_heads` heads of `key_dim` features,
    of `value_dim` for values, and what the heads give is projected to as many features
    as `query` has, or to `output_size`. `num_key_heads` gives keys and values fewer
    heads, which queries share. In training, weights are dropped with the probability
    `dropout`. `generator` is where initial values and these draws come from; without
    one, the draws have a generator of the layer's own, as those of `Dropout`.

    `attention_mask` is True where a query may attend to a key, [batch, T, S] for all
    heads or [batch, heads, T, S]; one of floats is added to the scores.

    >>> import tapejit as tj
    >>> layer = tj.nn.MultiHeadAttention(2, 4)
    >>> x = tj.ones((3, 5, 8))
    >>> layer(x, x, use_causal_mask=True).shape
    (3, 5, 8)
    >>> [name for name, _ in layer.named_variables()][:2]
    ['query.weight', 'query.bias']
    """

    output: Dense | None

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | Function = "glorot_uniform",
        bias_initializer: str | Function = "zeros",
        name: str | None = None,
        *,
        num_key_heads: int | None = None,
        output_size: int | None = None,
        dtype: Any = None,
        policy: str | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.name = "attention" if name is None else str(name)
        self._set_policy(policy)
        self.num_heads = positive(num_heads, "num_heads", self.name)
        self.key_dim = positive(key_dim, "key_dim", self.name)
        size = key_dim if value_dim is None else value_dim
        self.value_dim = positive(size, "value_dim", self.name)
        shared = num_heads if num_key_heads is None else num_key_heads
        self.num_key_heads = positive(shared, "num_key_heads", self.name)
        if self.num_heads % self.num_key_heads:
            raise ArgumentError(
                f"{self.num_heads} heads cannot share {self.num_key_heads} heads of "
                "keys and values",
                op=self.name,
                help="num_heads is a multiple of num_key_heads",
            )
        self.rate = float(dropout)
        if not 0 <= self.rate <= 1:
            raise ArgumentError(
                f"dropout is a probability from 0 to 1, got {dropout}", op=self.name
            )

        self.query, self.key, self.value = (
            Dense(
                units,
                None,
                use_bias,
                kernel_initializer,
                bias_initializer,
                f"{self.name}.{part}",
                dtype=dtype,
                generator=generator,
            )
            for part, units in (
                ("query", self.num_heads * self.key_dim),
                ("key", self.num_key_heads * self.key_dim),
                ("value", self.num_key_heads * self.value_dim),
            )
        )
        self.output = None
        if output_size is not None:
            self._make_output(positive(output_size, "output_size", self.name))
        if self.rate:  # a model without dropout draws nothing
            if generator is None:
                (generator,) = building.beside(lambda: DEFAULT.split(1))
            self.generator = generator

    def __call__(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        attention_mask: Any = None,
        use_causal_mask: bool = False,
        training: Any = False,
    ) -> Tensor:
        given = self._sequence(query, "query")
        values = self._sequence(value, "value")
        keys = values if key is None else self._sequence(key, "key")
        rate = self.rate if training else 0.0
        found = functions.scaled_dot_product_attention(
            _heads(self.query(given), self.num_heads),
            _heads(self.key(keys), self.num_key_heads),
            _heads(self.value(values), self.num_key_heads),
            self._mask(attention_mask),
            is_causal=use_causal_mask,
            dropout_rate=rate,
            generator=self.generator if rate else None,
        )
        *lead, heads, steps, size = found.shape
        joined = reshape(moveaxis(found, -3, -2), (*lead, steps, heads * size))
        if self.output is None:
            with building.building:
                if self.output is None:
                    self._make_output(int(given.shape[-1]))
        assert self.output is not None
        return self.output(joined)

    def _make_output(self, units: int) -> None:
        """The last projection, like the others but in its size."""
        like = self.query
        self.output = Dense(
            units,
            None,
            like.use_bias,
            like._kernel_initializer,
            like._bias_initializer,
            f"{self.name}.output",
            dtype=like.dtype,
        )

    def _sequence(self, x: Any, label: str) -> Tensor:
        operand = as_operand(x, self.name)
        if operand.ndim < 2:
            raise ShapeError(
                f"{label} is {operand._type}, and needs axes of steps and features",
                op=self.name,
                help="it is [batch, steps, features]",
            )
        return operand

    def _mask(self, mask: Any) -> Any:
        """A mask of three axes is the same for all heads."""
        if mask is None:
            return None
        operand = as_operand(mask, self.name)
        return expand_dims(operand, axis=-3) if operand.ndim == 3 else operand

    def __repr__(self) -> str:
        shared = self.num_key_heads
        return described(
            self,
            f"{self.num_heads}, {self.key_dim}",
            value_dim=None if self.value_dim == self.key_dim else self.value_dim,
            num_key_heads=None if shared == self.num_heads else shared,
            dropout=self.rate or None,
            policy=self.policy,
        )


def _heads(x: Tensor, count: int) -> Tensor:
    """[..., steps, heads · size] as [..., heads, steps, size]."""
    *lead, steps, size = x.shape
    return moveaxis(reshape(x, (*lead, steps, count, size // count)), -2, -3)


__all__ = ["MultiHeadAttention"]
