"""Sizes of windows and of groups, any of which may be symbolic.

Start reading at `window_count`.
"""

from __future__ import annotations

from tapejit.base.dims import Shape, Size
from tapejit.base.errors import ShapeError
from tapejit.ops.movement import print_shape


def extent(size: Size, dilation: int) -> Size:
    """From the first to the last of `size` entries that are `dilation` apart.

    Of no entries it is zero or less: the formula stays one polynomial.

    >>> extent(3, 1), extent(3, 2), extent(0, 1)
    (3, 5, 0)
    """
    return (size - 1) * dilation + 1


def window_count(padded: Size, window: Size, stride: int) -> Size:
    """How many positions a window has in an axis.

    >>> window_count(5, 3, 1), window_count(6, 3, 2)
    (3, 2)
    """
    return (padded - window) // stride + 1


def share(total: Size, groups: Size) -> Size:
    """What is each group's; a batch of no rows has no groups.

    >>> share(6, 2), share(0, 0)
    (3, 0)
    """
    return 0 if groups == 0 else total // groups


def check_groups(x: Shape, filters: Shape, groups: Size) -> None:
    """Refuse channels and features that are not those of the groups.

    `x` is [batch, *spatial, channels], filters are [*window, channels of a group,
    features].
    """
    channels, (*_, each, features) = x[-1], filters
    if channels != each * groups:
        among = "" if groups == 1 else f" in each of {groups} groups"
        raise ShapeError(
            f"the input has {channels} channels, and filters {print_shape(filters)} "
            f"take {each}{among}",
            help=channels_hint(channels, filters, groups),
        )
    if features != share(features, groups) * groups:
        raise ShapeError(
            f"{features} features of filters {print_shape(filters)} cannot be shared "
            f"among {groups} groups",
            help="the last size of the filters must be a multiple of groups",
        )


def channels_hint(channels: Size, filters: Shape, groups: Size) -> str:
    """What to write when channels and filters do not meet."""
    given = filters[-2]
    if isinstance(channels, int) and isinstance(given, int) and given:
        wanted, rest = divmod(channels, given)
        if not rest and wanted > 1 and filters[-1] % wanted == 0:
            return f"filters of this shape need groups={wanted}"
    if filters[-1] == channels:
        return "filters are [*window, channels // groups, features]: the last two " + (
            "axes are exchanged"
        )
    part = "channels" if groups == 1 else f"channels // {groups}"
    return f"the last but one size of the filters is {part}"
