"""Which pages a sequence holds: taken from the radix cache, allocated, handed to the cache, released."""

from .page_pool import PagePool
from .plan import PageCopy
from .radix_cache import Namespace, RadixCache
from .sequence import Sequence

__all__ = ["KVCache"]


class KVCache:
    """Bookkeeping of the latent cache's pages for the scheduler. Holds no tensor."""

    def __init__(self, num_pages: int, page_size: int, namespace: Namespace) -> None:
        self.page_size = page_size
        self._pool = PagePool(num_pages)
        self._radix = RadixCache(self._pool, page_size)
        self._root = self._radix.root(namespace)

    @property
    def num_tokens(self) -> int:
        """Tokens that fit if one sequence has everything."""
        return self._pool.num_pages * self.page_size

    def num_available(self) -> int:
        """Pages that can be had without pausing anyone."""
        return self._pool.num_free + self._radix.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def attach_prefix(self, sequence: Sequence) -> PageCopy | None:
        """Give a sequence without pages the longest cached prefix of its tokens. Needs one available page at most."""
        assert not sequence.pages and sequence.node is None
        match = self._radix.match(self._root, sequence.tokens, sequence.match_limit)
        sequence.node = match.node
        self._radix.lock(match.node)
        sequence.pages = [node.page for node in match.node.path()]
        sequence.num_shared_pages = len(sequence.pages)
        sequence.num_computed = match.num_page_tokens
        if not match.partial_tokens or not self.reserve(sequence, match.num_tokens):
            return None
        sequence.num_computed = match.num_tokens
        return PageCopy(match.partial_page, sequence.pages[-1], match.partial_tokens)

    def cached_prefix_len(self, sequence: Sequence) -> int:
        return self._radix.match(self._root, sequence.tokens, sequence.match_limit).num_tokens

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens, evicting what nobody uses. False: there is not enough."""
        needed = self.pages_for(num_tokens) - len(sequence.pages)
        if needed > self._pool.num_free:
            self._radix.evict(needed - self._pool.num_free)
        if needed > self._pool.num_free:
            return False
        sequence.pages += [self._pool.allocate() for _ in range(needed)]
        return True

    def share_full_pages(self, sequence: Sequence) -> None:
        """Hand the pages that have become full to the radix cache, so that others can use them at once."""
        size = self.page_size
        while (sequence.num_shared_pages + 1) * size <= sequence.num_computed:
            self._share_page(sequence, size, lock=True)

    def release(self, sequence: Sequence) -> None:
        """Take everything from the sequence. What is computed stays in the radix cache until it is evicted."""
        if sequence.node is None:
            return
        self.share_full_pages(sequence)
        locked = sequence.node
        rest = sequence.num_computed - sequence.num_shared_pages * self.page_size
        if rest > 0:
            self._share_page(sequence, rest, lock=False)
        self._radix.unlock(locked)
        for page in sequence.pages[sequence.num_shared_pages :]:
            self._pool.free(page)
        sequence.node = None
        sequence.pages = []
        sequence.num_shared_pages = sequence.num_computed = 0

    def discard(self, sequence: Sequence) -> None:
        """Take everything from a sequence whose last step failed: its private pages may hold anything."""
        sequence.num_computed = sequence.num_shared_pages * self.page_size
        self.release(sequence)

    def flush(self) -> None:
        """Evict every page that no sequence uses."""
        self._radix.evict(self._radix.num_evictable)

    def counts(self) -> dict[str, int]:
        """Pages by state; `free + evictable + protected == total`."""
        free, evictable = self._pool.num_free, self._radix.num_evictable
        total = self._pool.num_pages
        return {"free": free, "evictable": evictable, "protected": total - free - evictable, "total": total}

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """`sequences`: all that hold pages."""
        private = [page for sequence in sequences for page in sequence.pages[sequence.num_shared_pages :]]
        self._radix.check_integrity(private)

    def _share_page(self, sequence: Sequence, num_tokens: int, *, lock: bool) -> None:
        index = sequence.num_shared_pages
        start = index * self.page_size
        tokens = tuple(sequence.tokens[start : start + num_tokens])
        assert sequence.node is not None
        node = self._radix.insert(sequence.node, tokens, sequence.pages[index], lock=lock)
        sequence.node = node
        sequence.pages[index] = node.page
        sequence.num_shared_pages += 1
