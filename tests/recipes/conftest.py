from tests.callbacks.conftest import kernels_are_optimised_less  # noqa: F401  (a fixture, of every test here)
