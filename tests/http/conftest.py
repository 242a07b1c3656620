import pytest

from far_side import World


@pytest.fixture(params=["sync", "async"])
def world(request):
    return World(request.param)
