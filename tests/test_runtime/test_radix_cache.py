"""The page accounting after random operations, and what a match returns."""

import random

import pytest

from drawloom.runtime.page_pool import PagePool
from drawloom.runtime.radix_cache import Namespace, Node, RadixCache


class Holder:
    """A sequence as the cache sees it: a locked path and private pages."""

    def __init__(self, tokens: list[int], root: Node) -> None:
        self.tokens = tokens
        self.node = root
        self.pages: list[int] = []


def grow(pool: PagePool, cache: RadixCache, holder: Holder, size: int) -> None:
    """Compute everything: match, then fill pages of its own and hand them over."""
    match = cache.match(holder.node, holder.tokens, len(holder.tokens) - 1)
    holder.node = match.node
    cache.lock(match.node)
    for start in range(match.num_page_tokens, len(holder.tokens), size):
        if not pool.num_free:
            cache.evict(1)
        if not pool.num_free:
            return
        holder.pages.append(pool.allocate())
        if start + size <= len(holder.tokens):
            page = holder.pages.pop()
            holder.node = cache.insert(holder.node, tuple(holder.tokens[start : start + size]), page, lock=True)


def drop(pool: PagePool, cache: RadixCache, holder: Holder, size: int, keep: bool) -> None:
    locked = holder.node
    if holder.pages:
        start = len(locked.path()) * size
        page = holder.pages.pop()
        if keep:
            cache.insert(locked, tuple(holder.tokens[start : start + size]), page, lock=False)
        else:
            pool.free(page)
    cache.unlock(locked)


@pytest.mark.parametrize("seed", range(8))
def test_every_page_has_one_owner_after_random_operations(seed: int) -> None:
    rng = random.Random(seed)
    size, total = 4, 40
    pool = PagePool(total)
    cache = RadixCache(pool, size)
    root = cache.root(Namespace("m"))
    holders: list[Holder] = []
    seen = {"evicted": 0, "shared": 0, "partial": 0}
    for _ in range(600):
        action = rng.random()
        if action < 0.5:
            stem = [1, 2, 3, 4, 5, 6, 7, 8, 9][: rng.randint(1, 9)]
            tokens = stem + [rng.randint(10, 12) for _ in range(rng.randint(1, 14))]
            match = cache.match(root, tokens, len(tokens) - 1)
            seen["shared"] += match.num_page_tokens > 0
            seen["partial"] += match.partial_tokens > 0
            holder = Holder(tokens, root)
            grow(pool, cache, holder, size)
            holders.append(holder)
        elif action < 0.9 and holders:
            drop(pool, cache, holders.pop(rng.randrange(len(holders))), size, keep=rng.random() < 0.7)
        else:
            seen["evicted"] += cache.evict(rng.randint(1, 5))
        cache.check_integrity([page for holder in holders for page in holder.pages])
    assert all(seen.values()), seen
    for holder in holders:
        drop(pool, cache, holder, size, keep=True)
    cache.evict(total)
    assert pool.num_free == total and cache.num_pages == 0


def test_a_match_is_exact_to_the_token_and_leaves_the_last_one() -> None:
    pool = PagePool(8)
    cache = RadixCache(pool, 4)
    root = cache.root(Namespace("m"))
    holder = Holder(list(range(1, 11)), root)
    grow(pool, cache, holder, 4)
    drop(pool, cache, holder, 4, keep=True)
    found = cache.match(root, [1, 2, 3, 4, 5, 6, 20, 21], 7)
    assert (found.num_page_tokens, found.partial_tokens) == (4, 2)
    same = cache.match(root, list(range(1, 11)), 9)
    assert same.num_tokens == 9
    assert cache.match(root, [7, 8], 2).num_tokens == 0


def test_namespaces_share_nothing() -> None:
    pool = PagePool(8)
    cache = RadixCache(pool, 4)
    holder = Holder(list(range(9)), cache.root(Namespace("m", adapter_load_id=1)))
    grow(pool, cache, holder, 4)
    tokens = list(range(9))
    assert cache.match(cache.root(Namespace("m", adapter_load_id=1)), tokens, 8).num_tokens == 8
    for other in (Namespace("m"), Namespace("m", adapter_load_id=2), Namespace("m", salt="1"), Namespace("n", 1)):
        assert cache.match(cache.root(other), tokens, 8).num_tokens == 0


def test_the_least_recently_used_leaf_goes_first_and_locked_pages_never() -> None:
    pool = PagePool(4)
    cache = RadixCache(pool, 2)
    root = cache.root(Namespace("m"))
    old, young = (cache.insert(root, tokens, pool.allocate(), lock=False) for tokens in ((1, 1), (2, 2)))
    locked = cache.insert(root, (3, 3), pool.allocate(), lock=True)
    cache.match(root, [1, 1, 5], 2)  # now the other one is the oldest
    assert cache.evict(1) == 1 and young.page < 0 <= old.page
    assert cache.evict(5) == 1 and old.page < 0 <= locked.page
    assert cache.num_evictable == 0


def test_many_locks_and_unlocks_do_not_grow_the_eviction_queue() -> None:
    pool = PagePool(4)
    cache = RadixCache(pool, 2)
    root = cache.root(Namespace("m"))
    node = cache.insert(root, (1, 1), pool.allocate(), lock=False)
    for _ in range(5000):
        cache.match(root, [1, 1, 2], 2)
        cache.lock(node)
        cache.unlock(node)
    assert len(cache._heap) < 200
    assert cache.evict(1) == 1
