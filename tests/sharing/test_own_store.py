"""A store that the caller has made."""

import pytest

from headgate import Dispatch, InvalidConfig, TokenBudget
from headgate.testing import MemoryStore


class WithoutUnlisten:
    def __init__(self):
        self._store = MemoryStore()

    async def ask(self, key, question):
        return await self._store.ask(key, question)

    async def swap(self, group, changes, mark):
        return await self._store.swap(group, changes, mark)

    async def listen(self, key, heard):
        await self._store.listen(key, heard)


@pytest.mark.parametrize(
    "give",
    [
        lambda store: Dispatch("api", rates="10/second", store=store),
        lambda store: TokenBudget(key="api", store=store),
    ],
    ids=["gate", "budget"],
)
def test_a_store_without_unlisten_is_an_error_where_it_is_given(give):
    with pytest.raises(InvalidConfig, match="no method `unlisten`"):
        give(WithoutUnlisten())
