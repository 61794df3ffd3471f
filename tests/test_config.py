"""Settings: values, environment, overrides that stay in their context."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tapejit.base.config import (
    SETTINGS,
    Config,
    ConfigError,
    Setting,
    Settings,
    config,
)

FIELDS = list(SETTINGS.values())
NAMES = [field.name for field in FIELDS]


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Every test starts from the defaults, whatever the environment says."""
    before = {name: getattr(config, name) for name in NAMES}
    config.update(**vars(Config()))
    yield
    config.update(**before)


def in_thread(read: Callable[[], object]) -> object:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(read()))
    thread.start()
    thread.join()
    return seen[0]


# ------------------------------------------------------------------------- the table


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_is_described_and_readable(field: Setting) -> None:
    rows = [row for row in Config.describe().splitlines() if f"`{field.name}`" in row]

    assert len(rows) == 1
    for told in (field.env, repr(field.default), field.meaning):
        assert told in rows[0]
    assert getattr(config, field.name) == field.default
    assert field.env == f"TAPEJIT_{field.name.upper()}"
    assert not hasattr(object, field.name)
    assert field.name not in ("current", "update", "override")


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_spelling_in_the_environment_is_understood(
    field: Setting,
) -> None:
    spellings = field.values.spellings

    for text, value in spellings.items():
        for environ in ({field.env: text.upper() + " "},):
            assert getattr(Config.from_environment(environ), field.name) == value
    for value in spellings.values():
        assert getattr(Config(**{field.name: value}), field.name) == value


def test_describe_is_a_markdown_table() -> None:
    lines = Config.describe().splitlines()

    assert len(lines) == 2 + len(NAMES)
    assert {line.count("|") for line in lines} == {6}


# ---------------------------------------------------------------------------- values


def test_config_is_a_value() -> None:
    assert Config() == Config(default_float="float32", check=False)
    assert hash(Config()) == hash(Config(default_float="float32"))
    assert Config() != Config(check=True)
    with pytest.raises(AttributeError):
        Config().check = True


def test_default_float_is_stored_by_name() -> None:
    import ml_dtypes

    spellings = {
        "float16": np.float16,
        "bfloat16": ml_dtypes.bfloat16,
        "float32": np.dtype("float32"),
        "float64": np.dtype(np.float64),
    }
    for name, spelling in spellings.items():
        stored = Config(default_float=spelling).default_float
        assert (type(stored), stored) == (str, name)


@pytest.mark.parametrize(
    "value", ["int32", "f4", 32, float, np.int32, np.floating, None, ["float32"]]
)
def test_a_bad_float_is_refused_with_the_choices(value: object) -> None:
    match = r"^default_float=.*: allowed are 'float16', 'bfloat16', 'float32', 'float"
    for change in (config.update, config.override, Config):
        with pytest.raises(ConfigError, match=match):
            change(default_float=value)
    assert config.current() == Config()


@pytest.mark.parametrize("value", ["1", 1, None, np.True_])
def test_a_switch_is_a_bool(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^check=.*: allowed are False, True$"):
        config.update(check=value)


@pytest.mark.parametrize("value", [-1, 6, True, "1", 1.0, None])
def test_a_level_is_an_int_from_0_to_5(value: object) -> None:
    match = r"^debug=.*: allowed are 0, 1, 2, 3, 4, 5$"
    for change in (config.update, config.override, Config):
        with pytest.raises(ConfigError, match=match):
            change(debug=value)
    assert config.debug == 0


def test_unknown_names_list_the_known_ones() -> None:
    listed = "the settings are " + ", ".join(map(repr, NAMES))
    with pytest.raises(ConfigError, match=r"'chek'; did you mean 'check'\?") as error:
        config.update(chek=True)
    assert listed in str(error.value)
    with pytest.raises(ConfigError, match="no setting 'colour'"):
        config.override(colour="red")
    with pytest.raises(AttributeError, match="no setting 'colour'") as missing:
        config.colour
    assert listed in str(missing.value)
    with pytest.raises(AttributeError, match="no setting 'colour'"):
        config.colour = "red"
    assert not isinstance(missing.value, ValueError)
    assert isinstance(error.value, ValueError)


def test_assignment_says_what_to_write() -> None:
    with pytest.raises(AttributeError) as error:
        config.default_float = "float64"

    assert "config.update(default_float='float64')" in str(error.value)
    assert "with config.override(default_float='float64'):" in str(error.value)
    assert config.default_float == "float32"


def test_a_failed_update_changes_nothing() -> None:
    with pytest.raises(ConfigError):
        config.update(check=True, default_float="float8")

    assert config.current() == Config()


def test_repr_marks_what_differs_from_the_default() -> None:
    text = repr(config)
    assert "default_float='float32'" in text
    assert "(default" not in text

    config.update(default_float="float16")
    with config.override(check=True):
        text = repr(config)
    assert "default_float='float16' (default 'float32')" in text
    assert "check=True (default False)" in text


# -------------------------------------------------------------------- where it counts


def test_update_is_seen_by_other_threads() -> None:
    config.update(default_float="float64")

    assert config.default_float == "float64"
    assert in_thread(lambda: config.default_float) == "float64"


def test_override_ends_with_its_block_and_its_thread() -> None:
    with config.override(default_float="float64") as inside:
        assert inside == config.current() == Config(default_float="float64")
        assert config.default_float == "float64"
        assert in_thread(config.current) == Config()
    assert config.current() == Config()

    with pytest.raises(KeyError), config.override(check=True):
        raise KeyError
    assert config.check is False


def test_overrides_nest() -> None:
    with config.override(default_float="float64"):
        with config.override(check=True):
            assert config.current() == Config(default_float="float64", check=True)
            with config.override(default_float="float16"):
                assert config.current() == Config(default_float="float16", check=True)
        assert config.current() == Config(default_float="float64")


def test_update_inside_an_override_changes_what_is_not_overridden() -> None:
    with config.override(default_float="float64"):
        config.update(default_float="float16", check=True)

        assert config.check is True
        assert config.default_float == "float64"
        assert config.current() == Config(default_float="float64", check=True)
        with config.override():
            assert config.current() == Config(default_float="float64", check=True)
        config.update(check=False)
        assert config.current() == Config(default_float="float64")
    assert config.current() == Config(default_float="float16")


def test_snapshot_is_the_same_object_until_something_changes() -> None:
    assert config.current() is config.current()
    with config.override(check=True):
        first = config.current()
        assert first is config.current()
        config.update(default_float="float64")
        assert config.current() is not first
        assert config.current() is config.current()


def test_an_override_that_is_not_entered_does_nothing() -> None:
    config.override(check=True)

    assert config.current() == Config()


def test_concurrent_updates_all_count() -> None:
    start = threading.Barrier(2)

    def change(**values: object) -> None:
        start.wait()
        for _ in range(200):
            config.update(**values)

    changes = ({"check": True}, {"default_float": "float64"})
    for _ in range(5):
        config.update(check=False, default_float="float32")
        threads = [threading.Thread(target=change, kwargs=kw) for kw in changes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert config.current() == Config(default_float="float64", check=True)


def test_tasks_do_not_see_each_others_override() -> None:
    async def task(name: str, entered: list[str], both: asyncio.Event) -> list[str]:
        seen = [config.default_float]
        with config.override(default_float=name):
            entered.append(name)
            if len(entered) == 2:
                both.set()
            await both.wait()  # both tasks are inside their blocks now
            seen.append(config.default_float)
        await asyncio.sleep(0)
        return [*seen, config.default_float]

    async def main() -> list[list[str]]:
        entered: list[str] = []
        both = asyncio.Event()
        with config.override(default_float="bfloat16"):
            children = [
                asyncio.create_task(task(name, entered, both))
                for name in ("float16", "float64")
            ]
        # Started inside the block, they keep its override; this task has left it.
        assert config.default_float == "float32"
        return list(await asyncio.gather(*children))

    assert asyncio.run(main()) == [
        ["bfloat16", "float16", "bfloat16"],
        ["bfloat16", "float64", "bfloat16"],
    ]


def test_settings_has_no_state_of_its_own() -> None:
    with config.override(check=True):
        assert Settings().check is True


# ----------------------------------------------------------------------- environment


def test_an_empty_variable_sets_nothing() -> None:
    assert Config.from_environment({"TAPEJIT_CHECK": ""}) == Config()
    assert Config.from_environment({"TAPEJIT_OTHER": "1", "CHECK": "1"}) == Config()


def test_a_bad_variable_is_named() -> None:
    match = "^environment variable TAPEJIT_CHECK='maybe': allowed are 0, 1, false, true"
    with pytest.raises(ConfigError, match=match):
        Config.from_environment({"TAPEJIT_CHECK": "maybe"})


def run_with(**environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TAPEJIT_")}
    root = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", "from tapejit.base.config import config; print(config)"],
        env={**clean, "PYTHONPATH": root, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_reads_its_environment() -> None:
    done = run_with(
        TAPEJIT_DEFAULT_FLOAT="float64",
        TAPEJIT_CHECK="1",
        TAPEJIT_EAGER="1",
        TAPEJIT_DEBUG="3",
    )

    assert done.returncode == 0, done.stderr
    assert "default_float='float64' (default 'float32')" in done.stdout
    assert "check=True (default False)" in done.stdout
    assert "eager=True (default False)" in done.stdout
    assert "debug=3 (default 0)" in done.stdout


def test_a_bad_environment_fails_the_import_by_name() -> None:
    done = run_with(TAPEJIT_DEFAULT_FLOAT="double")

    assert done.returncode != 0
    assert "ConfigError: environment variable TAPEJIT_DEFAULT_FLOAT='double'" in (
        done.stderr
    )
    assert "float16, bfloat16, float32, float64" in done.stderr
