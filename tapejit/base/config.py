"""Every setting of tapejit, in one table: the fields of `Config`.

Each field is one entry that gives its default, its environment variable, the values it
may have and what it means. The checks, the reading of the environment and the table in
the documentation (`Config.describe()`) all come from these entries, so adding a setting
is adding one.

The data structures are `Config`, a frozen and hashable snapshot of all settings; the
snapshot of the process; in a context variable, what the current context overrides,
kept with the snapshot that results, so that reading costs about 0.1 us; and `config`,
the one object through which all of it is read and changed.

Start reading at `Config`.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np

from tapejit.base.public import public


@public("tapejit")
class ConfigError(ValueError):
    """A setting that does not exist or a value it cannot have.

    >>> try:
    ...     Config(default_float="float8")
    ... except ConfigError as error:
    ...     print(error)
    default_float='float8': allowed are 'float16', 'bfloat16', 'float32', 'float64'
    """


class _Choice:
    """A setting with finitely many values.

    `spellings` gives the value for each text an environment variable may have;
    `simplify` turns other ways of saying a value in Python into the value.
    """

    def __init__(
        self,
        spellings: Mapping[str, object] = MappingProxyType({}),
        simplify: Callable[[object], object] = lambda value: value,
    ) -> None:
        self.spellings = spellings
        self.simplify = simplify

    def values(self) -> list[object]:
        return list(dict.fromkeys(self.spellings.values()))

    def describe(self) -> str:
        """What is allowed, as Markdown."""
        return ", ".join(f"`{value!r}`" for value in self.values())

    def check(self, value: object) -> object:
        """The value to store for `value`; ConfigError if it is none of ours."""
        simple = self.simplify(value)
        for allowed in self.values():
            if type(simple) is type(allowed) and simple == allowed:
                return allowed
        raise ConfigError(f"{value!r}: allowed are {_listed(self.values())}")

    def parse(self, text: str) -> object:
        """The value an environment variable's text stands for."""
        try:
            return self.spellings[text.strip().lower()]
        except KeyError:
            spellings = ", ".join(self.spellings)
            raise ConfigError(f"{text!r}: allowed are {spellings}") from None


class _Amount(_Choice):
    """A setting that is a whole number, at least `least`."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def describe(self) -> str:
        return f"whole numbers from {self.least} on"

    def check(self, value: object) -> object:
        if type(value) is int and value >= self.least:
            return value
        raise ConfigError(f"{value!r}: allowed are {self.describe()}")

    def parse(self, text: str) -> object:
        try:
            return self.check(int(text))
        except ValueError:  # a ConfigError is one too
            raise ConfigError(f"{text!r}: allowed are {self.describe()}") from None


class _Folder(_Choice):
    """A setting that is the path of a folder; '' stands for none in particular."""

    def describe(self) -> str:
        return "a path"

    def check(self, value: object) -> object:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(path, str):
            return path
        raise ConfigError(f"{value!r}: allowed are paths")

    def parse(self, text: str) -> object:
        return text


class _Processor(_Choice):
    """A setting that is LLVM's name of a processor; '' stands for this one."""

    def describe(self) -> str:
        return "a name such as `'x86-64-v2'`, `'x86-64-v3'` or LLVM's of a processor"

    def check(self, value: object) -> object:
        if isinstance(value, str) and set(value) <= _OF_PROCESSORS:
            return value
        raise ConfigError(f"{value!r}: allowed is {self.describe()}")

    def parse(self, text: str) -> object:
        return self.check(text.strip())


_OF_PROCESSORS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def _dtype_name(value: object) -> object:
    """The name of a NumPy dtype or scalar class; anything else as it is."""
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, type) and issubclass(value, np.generic):
        return value.__name__
    return value


_FLOATS = _Choice(
    {name: name for name in ("float16", "bfloat16", "float32", "float64")},
    simplify=_dtype_name,
)
_SWITCH = _Choice({"0": False, "1": True, "false": False, "true": True})
_LEVELS = _Choice({str(level): level for level in range(6)})
_HOSTS = _Choice({name: name for name in ("llvm", "numba")})
_WHEN = _Choice({name: name for name in ("now", "background")})
_DRIVERS = _Choice({name: name for name in ("nvidia", "emulated")})
_POOLS = _Choice({name: name for name in ("own", "tbb", "omp", "serial")})
_POLICIES = _Choice(
    {name: name for name in ("float32", "mixed_float16", "mixed_bfloat16")}
)


# Called when settings may have changed, where they have: what is kept by a setting is
# then kept by its new value. Whoever keeps something adds a function.
ON_CHANGE: list[Callable[[], None]] = []

# Not empty once any snapshot has asked for checked numerics: until then each operation
# is spared the look at its settings, which would cost it a tenth.
NUMERICS: list[bool] = []
# The same of a policy of mixed precision.
MIXED: list[bool] = []


class Setting:
    """One of the fields of `Config`, which it enters into `SETTINGS`."""

    def __init__(self, default: Any, env: str, values: _Choice, meaning: str) -> None:
        self.default, self.env = default, env
        self.values, self.meaning = values, meaning

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        SETTINGS[name] = self


SETTINGS: Final[dict[str, Setting]] = {}


def _setting(default: Any, env: str, values: _Choice, meaning: str) -> Any:
    return Setting(default, env, values, meaning)  # of any type, for type checkers


def _check_names(changes: Iterable[str]) -> None:
    for name in changes:
        if name not in SETTINGS:
            raise ConfigError(f"tapejit has no setting {name!r}; {_known(name)}")


def _known(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}the settings are {_listed(SETTINGS)}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(repr(value) for value in values)


@public("tapejit")
class Config:  # written out: a dataclass takes 2 ms longer to import
    """All settings at one moment: immutable, comparable, hashable, always valid.

    >>> Config(default_float="float64")  # doctest: +ELLIPSIS
    Config(default_float='float64', mixed_precision='float32'...)
    >>> Config() == Config(default_float=np.float32)
    True
    """

    default_float: str = _setting(
        "float32", "TAPEJIT_DEFAULT_FLOAT", _FLOATS, "dtype that Python floats become"
    )
    mixed_precision: str = _setting(
        "float32",
        "TAPEJIT_MIXED_PRECISION",
        _POLICIES,
        "the policy of mixed precision: in which dtype products of float32 matrices "
        "and convolutions are computed; `tj.mixed_precision` sets it",
    )
    check: bool = _setting(
        False,
        "TAPEJIT_CHECK",
        _SWITCH,
        "check each graph and each plan of loops that is made for consistency, and let "
        "native code begin with NaN in all memory that it is to write, so that reading "
        "it too early shows",
    )
    eager: bool = _setting(
        False, "TAPEJIT_EAGER", _SWITCH, "run decorated functions as plain Python"
    )
    native: bool = _setting(
        True,
        "TAPEJIT_NATIVE",
        _SWITCH,
        "compile graphs to native code; without it NumPy performs their operations",
    )
    compile: str = _setting(
        "now",
        "TAPEJIT_COMPILE",
        _WHEN,
        "when native code is made: in the first call, or in the background while NumPy "
        "performs the operations",
    )
    progress: bool = _setting(
        True,
        "TAPEJIT_PROGRESS",
        _SWITCH,
        "show a line on standard error while a call waits for a compilation that takes "
        "longer than a second; one line when it is done where that is no terminal",
    )
    cpu: str = _setting(
        "",
        "TAPEJIT_CPU",
        _Processor(),
        "the processor to make code for; by default this one with all it can do",
    )
    host: str = _setting(
        "llvm",
        "TAPEJIT_HOST",
        _HOSTS,
        "what makes machine code of a module: LLVM as it is, or Numba with its passes",
    )
    cuda: str = _setting(
        "nvidia",
        "TAPEJIT_CUDA",
        _DRIVERS,
        "what runs GPU kernels: NVIDIA's driver, or a device that this processor "
        "emulates, slow and strict",
    )
    soft_placement: bool = _setting(
        False,
        "TAPEJIT_SOFT_PLACEMENT",
        _SWITCH,
        "let the CPU perform, on copies, what there is no GPU kernel for; without it "
        "that is an error",
    )
    cuda_tf32: bool = _setting(
        False,
        "TAPEJIT_CUDA_TF32",
        _SWITCH,
        "let tensor cores of a GPU multiply float32 matrices, of whose numbers they "
        "take 11 bits: several times as fast, with errors of 0.0005 of each product",
    )
    device_memory: int = _setting(
        0,
        "TAPEJIT_DEVICE_MEMORY",
        _Amount(0),
        "megabytes that arrays on a GPU may use; 0 for all that is free when it is "
        "used first, which is when this is read",
    )
    debug: int = _setting(
        0,
        "TAPEJIT_DEBUG",
        _LEVELS,
        "what to report: 1 why functions are traced and how long that and compiling "
        "take, 2 also their graphs, 3 also what each pass changes and the graphs of "
        "calls under a tape, 4 also what each pass changes in their loops and the "
        "kernels as Python, 5 also as LLVM",
    )
    dump: str = _setting(
        "",
        "TAPEJIT_DUMP",
        _Folder(),
        "a folder for files with the graph, the kernels, the LLVM and the instructions "
        "of what is compiled; none by default",
    )
    check_numerics: bool = _setting(
        False,
        "TAPEJIT_CHECK_NUMERICS",
        _SWITCH,
        "raise an error where an operation gives NaN or infinity",
    )
    num_threads: int = _setting(
        0,
        "TAPEJIT_NUM_THREADS",
        _Amount(0),
        "how many threads compiled functions use until `set_num_threads` is called; "
        "0 for what `OMP_NUM_THREADS` says, else as many as there are cores",
    )
    pool: str = _setting(
        "own",
        "TAPEJIT_POOL",
        _POOLS,
        "where the threads come from: our own, TBB's or OpenMP's through Numba; the "
        "next one if it is missing; read when the first threads are needed",
    )
    kept_memory: int = _setting(
        256,
        "TAPEJIT_KEPT_MEMORY",
        _Amount(0),
        "megabytes of memory that large results leave to later ones, which is faster "
        "than new memory; the process keeps it until a lower value, or 0 for none, is "
        "set",
    )
    cache: bool = _setting(
        True, "TAPEJIT_CACHE", _SWITCH, "keep native code on disk for later processes"
    )
    cache_dir: str = _setting(
        "",
        "TAPEJIT_CACHE_DIR",
        _Folder(),
        "where native code is kept; by default the user's cache folder",
    )
    cache_size: int = _setting(
        256, "TAPEJIT_CACHE_SIZE", _Amount(1), "megabytes of native code to keep"
    )

    def __init__(self, **values: Any) -> None:
        _check_names(values)
        for name, setting in SETTINGS.items():
            try:
                value = setting.values.check(values.get(name, setting.default))
            except ConfigError as error:
                raise ConfigError(f"{name}={error}") from None
            self.__dict__[name] = value
        if self.check_numerics and not NUMERICS:
            NUMERICS.append(True)
        if self.mixed_precision != "float32" and not MIXED:
            MIXED.append(True)

    def replaced(self, **changes: Any) -> Config:
        """The same with other values of some settings.

        >>> Config(check=True).replaced(eager=True) == Config(check=True, eager=True)
        True
        """
        return Config(**{**vars(self), **changes})

    def texts(self) -> dict[str, str]:
        """What each setting is, and what it is by default if that is something else.

        >>> Config(debug=2).texts()["debug"]
        '2 (default 0)'
        """
        found = {}
        for name, value in vars(self).items():
            default = SETTINGS[name].default
            found[name] = f"{value!r}" + f" (default {default!r})" * (value != default)
        return found

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Config does not change: use replaced({name}=...)")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={x!r}' for name, x in vars(self).items())})"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Config:
        """The defaults, changed by what `environ` sets; an empty text sets nothing.

        >>> Config.from_environment({"TAPEJIT_CHECK": "1"}).check
        True
        """
        found = {}
        for name, setting in SETTINGS.items():
            text = environ.get(setting.env)
            if not text:
                continue
            try:
                found[name] = setting.values.parse(text)
            except ConfigError as error:
                raise ConfigError(
                    f"environment variable {setting.env}={error}"
                ) from None
        return cls(**found)

    @classmethod
    def describe(cls) -> str:
        """All settings as a Markdown table.

        >>> print(Config.describe())  # doctest: +ELLIPSIS
        | setting | environment variable | default | allowed | meaning |
        |---|---|---|---|---|
        | `default_float` | `TAPEJIT_DEFAULT_FLOAT` | `'float32'` | `'float16'`, ...
        """
        rows = ["| setting | environment variable | default | allowed | meaning |"]
        rows.append("|---|---|---|---|---|")
        for name, x in SETTINGS.items():
            rows.append(
                f"| `{name}` | `{x.env}` "
                f"| `{x.default!r}` | {x.values.describe()} | {x.meaning} |"
            )
        return "\n".join(rows)


class _Override(NamedTuple):
    """What a context changes, and the snapshot that gives on top of `base`."""

    changes: Mapping[str, Any]
    base: Config
    merged: Config


def _make_override(changes: Mapping[str, Any]) -> _Override:
    base = _process
    return _Override(changes, base, base.replaced(**changes))


# State of the module and not of `Settings`: an attribute of an object whose class has
# a __getattr__ takes 40 ns more to read.
_process = Config.from_environment(os.environ)
_process_lock = threading.Lock()
_context = contextvars.ContextVar[_Override | None]("tapejit config", default=None)


if TYPE_CHECKING:
    _Readable = Config  # so that a type checker knows each setting of `config`
else:
    _Readable = object


class Settings(_Readable):
    """The settings in force here and now; `tapejit.config` is the only one.

    Read a setting as an attribute. `update` changes it for the process, `override` for
    a block; other threads do not see an override.

    >>> with config.override(default_float="float64"):
    ...     config.default_float
    ...     config  # doctest: +ELLIPSIS
    'float64'
    <tapejit config: default_float='float64' (default 'float32'), mixed...>
    """

    __slots__ = ()

    def current(self) -> Config:
        """The settings in force, as an immutable snapshot.

        >>> before = config.current()
        >>> with config.override(check=not before.check):
        ...     config.current() == before
        False
        """
        override = _context.get()
        if override is None:
            return _process
        if override.base is not _process:  # an update came after the last look
            override = _make_override(override.changes)
            _context.set(override)
        return override.merged

    def update(self, **changes: Any) -> None:
        """Change settings for the whole process.

        A block that overrides one of them keeps its own value until it ends.

        >>> before = config.check
        >>> config.update(check=True)
        >>> config.check
        True
        >>> config.update(check=before)
        """
        global _process
        _check_names(changes)
        with _process_lock:  # two updates at once must both count
            _process = _process.replaced(**changes)
        _tell_change()

    def override(self, **changes: Any) -> AbstractContextManager[Config]:
        """Change settings inside a `with` block.

        Only this context is concerned: the thread or asyncio task, and the tasks it
        starts inside. Settings that are not named follow `update` as before.

        >>> with config.override(check=True) as current:
        ...     current.check
        True
        """
        _check_names(changes)
        Config(**changes)  # a bad value fails here, not when the block is entered
        return _overriding(changes)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"tapejit has no setting {name!r}; {_known(name)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        if name not in SETTINGS:
            raise AttributeError(f"tapejit has no setting {name!r}; {_known(name)}")
        raise AttributeError(
            f"settings are not assigned: write config.update({name}={value!r}) for the "
            f"whole process, or `with config.override({name}={value!r}):` for a block"
        )

    def __repr__(self) -> str:
        texts = self.current().texts().items()
        return f"<tapejit config: {', '.join(map('='.join, texts))}>"


@contextmanager
def _overriding(changes: Mapping[str, Any]) -> Iterator[Config]:
    outer = _context.get()
    if outer is not None:
        changes = {**outer.changes, **changes}
    override = _make_override(changes)
    token = _context.set(override)
    try:
        _tell_change()
        yield override.merged
    finally:
        _context.reset(token)
        _tell_change()


def _tell_change() -> None:
    for react in ON_CHANGE:
        react()


def _reader(name: str, meaning: str) -> property:
    def read(self: Settings) -> Any:
        # What `current` does; calling it would double the cost inside an override.
        override = _context.get()
        if override is None:
            return getattr(_process, name)
        if override.base is _process:
            return getattr(override.merged, name)
        return getattr(self.current(), name)

    return property(read, doc=meaning)


config = Settings()

# A property per setting: __getattr__ is asked only after everything else has failed.
for _name, _entry in SETTINGS.items():
    setattr(Settings, _name, _reader(_name, _entry.meaning))
