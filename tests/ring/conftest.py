"""The capture library, as the tests of what it lives in build it."""

from tests.inject.conftest import compile_program, library  # noqa: F401
