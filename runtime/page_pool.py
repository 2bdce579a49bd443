"""Numbers of the pages of the latent cache that are free. The tensor itself belongs to the model runner."""

__all__ = ["PagePool"]


class PagePool:
    """`num_pages` pages; a page is free or has exactly one owner (a node of the radix cache, or a sequence)."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = bytearray(b"\1" * num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        page = self._free.pop()
        self._is_free[page] = 0
        return page

    def free(self, page: int) -> None:
        assert not self._is_free[page], f"page {page} is freed twice"
        self._is_free[page] = 1
        self._free.append(page)
