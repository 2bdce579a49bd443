"""Numbers of the pages of the latent cache that are free. The tensor itself belongs to the model runner."""

from heapq import heappop, heappush

__all__ = ["PagePool"]


class PagePool:
    """`num_pages` pages; a page is free or has exactly one owner (a node of the radix cache, or a sequence).

    The smallest free number goes first, since attention reads pages in place where they follow one another.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages))  # a heap
        self._is_free = bytearray(b"\1" * num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        page = heappop(self._free)
        self._is_free[page] = 0
        return page

    def free(self, page: int) -> None:
        assert not self._is_free[page], f"page {page} is freed twice"
        self._is_free[page] = 1
        heappush(self._free, page)
