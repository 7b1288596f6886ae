"""`Lifetime`: a context manager that starts a server and closes it."""

from __future__ import annotations

import abc
from typing import Self


class Lifetime(abc.ABC):
    """`with` starts it, and closes it at the end."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begins to serve."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops serving."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
