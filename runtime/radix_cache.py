"""Prefix tree over token ids: which pages of the latent cache hold which prefix.

A node is one page, so an edge holds up to `page_size` tokens and only leaves may hold fewer. A prefix that ends inside
a page is shared by copying the rows in question, so a match is exact to the token. Two sequences that computed the
same page at once end up sharing one: their bits are equal, and the second copy is freed.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from .page_pool import PagePool

__all__ = ["Match", "Namespace", "Node", "RadixCache"]


class Namespace(NamedTuple):
    """What must agree before a prefix may be shared."""

    model: str
    adapter_load_id: int = 0
    salt: str = ""


class Node:
    """One page of a prefix. `locks` counts the sequences whose path runs through it."""

    __slots__ = ("children", "last_used", "locks", "page", "parent", "tokens")

    def __init__(self, parent: "Node | None", tokens: tuple[int, ...], page: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.children: dict[int, list[Node]] = {}  # by first token
        self.locks = 0
        self.last_used = 0

    def path(self) -> "list[Node]":
        """The nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix: the full pages down to `node`, then `partial_tokens` rows of `partial_page`."""

    node: Node
    num_page_tokens: int
    partial_page: int
    partial_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_page_tokens + self.partial_tokens


class RadixCache:
    """Owns the pages that are handed to it by :meth:`insert` until it evicts them, least recently used first."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.page_size = page_size
        self._pool = pool
        self._roots: dict[Namespace, Node] = {}
        self._clock = count(1)
        self._order = count()
        self._heap: list[tuple[int, int, Node]] = []  # unlocked leaves, with outdated entries
        self.num_pages = 0
        self.num_locked = 0

    @property
    def num_evictable(self) -> int:
        return self.num_pages - self.num_locked

    def root(self, namespace: Namespace) -> Node:
        if namespace not in self._roots:
            self._roots[namespace] = Node(None, (), -1)
        return self._roots[namespace]

    def match(self, root: Node, tokens: Sequence[int], limit: int) -> Match:
        """The longest cached prefix of `tokens[:limit]`. Touches its nodes; lock before the next eviction."""
        node, start, now = root, 0, next(self._clock)
        while True:
            rest = tuple(tokens[start : min(start + self.page_size, limit)])
            best, common = self._closest(node, rest)
            if best is None:
                return Match(node, start, -1, 0)
            best.last_used = now
            if common < self.page_size:
                return Match(node, start, best.page, common)
            node, start = best, start + self.page_size

    def lock(self, node: Node) -> None:
        """Protect the path down to `node` from eviction."""
        for step in node.path():
            self._lock_one(step)

    def unlock(self, node: Node) -> None:
        for step in reversed(node.path()):
            step.locks -= 1
            assert step.locks >= 0
            if step.locks == 0:
                self.num_locked -= 1
                self._offer(step)

    def insert(self, parent: Node, tokens: tuple[int, ...], page: int, *, lock: bool) -> Node:
        """Hand `page` with `tokens` to the tree, below `parent`, whose page is full. Returns the node that holds them.

        Where they are already held, `page` is freed and the node that was there is returned. `lock` extends a lock on
        `parent` to the result.
        """
        assert 0 < len(tokens) <= self.page_size
        best, common = self._closest(parent, tokens)
        if best is not None and common == len(tokens):
            self._pool.free(page)
            node = best
        else:
            if best is not None and common == len(best.tokens) and not best.locks:
                self._remove(best)  # a shorter leaf that the new one contains
            node = Node(parent, tokens, page)
            parent.children.setdefault(tokens[0], []).append(node)
            self.num_pages += 1
        node.last_used = next(self._clock)
        if lock:
            self._lock_one(node)
        else:
            self._offer(node)
        return node

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` unlocked pages and return how many were freed."""
        freed = 0
        while freed < num_pages and self._heap:
            last_used, _, node = heapq.heappop(self._heap)
            if node.page < 0 or node.locks or node.children:
                continue
            if node.last_used != last_used:
                self._offer(node)
                continue
            self._remove(node)
            freed += 1
        return freed

    def check_integrity(self, private_pages: Sequence[int]) -> None:
        """Every page has one owner and `free + evictable + protected == total`. `private_pages`: held by sequences."""
        nodes = [node for root in self._roots.values() for node in self._walk(root)]
        pages = [node.page for node in nodes]
        owned = pages + list(private_pages)
        assert len(set(owned)) == len(owned), "a page has two owners"
        assert self.num_pages == len(nodes)
        assert self.num_locked == sum(node.locks > 0 for node in nodes)
        for node in nodes:
            assert node.parent is not None and (node.parent.parent is None or node.parent.locks >= node.locks)
            assert not node.children or len(node.tokens) == self.page_size
        protected = self.num_locked + len(private_pages)
        assert self._pool.num_free + self.num_evictable + protected == self._pool.num_pages

    def _closest(self, node: Node, tokens: tuple[int, ...]) -> tuple[Node | None, int]:
        """The child that shares most leading tokens with `tokens`, and how many."""
        best: Node | None = None
        most = 0
        for child in node.children.get(tokens[0], ()) if tokens else ():
            common = _common_length(child.tokens, tokens)
            if common > most:
                best, most = child, common
        return best, most

    def _lock_one(self, node: Node) -> None:
        self.num_locked += node.locks == 0
        node.locks += 1

    def _offer(self, node: Node) -> None:
        if node.locks or node.children or node.parent is None:
            return
        heapq.heappush(self._heap, (node.last_used, next(self._order), node))
        if len(self._heap) > 2 * self.num_pages + 64:  # mostly outdated entries
            leaves = {id(node): node for _, _, node in self._heap if node.page >= 0}
            self._heap = [(node.last_used, next(self._order), node) for node in leaves.values()]
            heapq.heapify(self._heap)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None and node.locks == 0 and not node.children
        siblings = parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.tokens[0]]
        self._pool.free(node.page)
        node.page = -1
        self.num_pages -= 1
        self._offer(parent)

    def _walk(self, node: Node) -> Iterator[Node]:
        stack = [child for children in node.children.values() for child in children]
        while stack:
            step = stack.pop()
            yield step
            stack += [child for children in step.children.values() for child in children]


def _common_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(index for index in range(shorter) if left[index] != right[index])
