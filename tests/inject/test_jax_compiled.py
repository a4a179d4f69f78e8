"""What JAX compiled before is for starts alone. JAX itself is not among what the tests install: a
package of the same public names stands for it, whose cache counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gputui.inject.environment import capture_environment
from gputui.trial.runs import compiled_once

JAX = """
import os
_heard = []

class config:
    jax_compilation_cache_dir = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    is_on = True
    def update(name, value):
        assert name == "jax_enable_compilation_cache"
        config.is_on = value

class monitoring:
    register_event_listener = _heard.append

def compile_again():
    from jax.experimental.compilation_cache import compilation_cache
    if config.jax_compilation_cache_dir and compilation_cache.is_used():
        for each in _heard:
            each("/jax/compilation_cache/cache_hits", backend="gpu")
        return 0
    return 1
"""
CACHE = """
import jax
_used = None

def is_used():
    global _used
    _used = jax.config.is_on if _used is None else _used
    return _used

def reset_cache():
    global _used
    _used = None
"""
PROGRAM = "import jax; print([jax.compile_again() for _ in range(12)])"


def compilations(folder: Path, environment: dict[str, str]) -> str:
    place = folder / "jax" / "experimental" / "compilation_cache"
    place.mkdir(parents=True, exist_ok=True)
    for each in (place, place.parent):
        (each / "__init__.py").touch()
    (folder / "jax" / "__init__.py").write_text(JAX)
    (place / "compilation_cache.py").write_text(CACHE)
    environment, _ = capture_environment(folder, False, environment, step_marks=True)
    environment["PYTHONPATH"] += os.pathsep + str(folder)
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_what_a_program_compiles_again_and_again_is_compiled_anew_under_capture(
    tmp_path: Path,
) -> None:
    with compiled_once():
        assert compilations(tmp_path, dict(os.environ)) == str([0] * 8 + [1] * 4)


def test_what_is_not_compiled_in_steps_is_taken_from_the_folder_in_steps_too(
    tmp_path: Path,
) -> None:
    with compiled_once() as reuse_in_steps:
        reuse_in_steps()
        assert compilations(tmp_path, dict(os.environ)) == str([0] * 12)


def test_a_folder_of_the_users_own_stays_as_it_is(tmp_path: Path) -> None:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = "theirs"
    try:
        with compiled_once():
            assert compilations(tmp_path, dict(os.environ)) == str([0] * 12)
        assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "theirs"
    finally:
        del os.environ["JAX_COMPILATION_CACHE_DIR"]
    with compiled_once():
        place = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
        assert place.stat().st_mode & 0o777 == 0o700
    assert not place.exists()
    assert not [name for name in os.environ if name.startswith(("JAX_", "GPUTUI_COMPILED"))]
